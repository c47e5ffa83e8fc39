"""Tensors of more dimensions than NumPy's arrays have are refused at the call, and the device goes on."""

import pytest

import flambeau as torch

ONES = (1,) * 63
TOO_MANY = {
    "ones": lambda x: torch.ones((1,) * 65, device=x.device),
    "expand": lambda x: x.expand((1,) * 64 + (2,)),
    "view": lambda x: x.view((1,) * 64 + (2,)),
    "unsqueeze": lambda x: x[None],
    "stack": lambda x: torch.stack([x, x]),
    "unfold": lambda x: x.unfold(-1, 1, 1),
    "view_as_real": lambda x: torch.view_as_real(x.to(torch.complex64)),
    "tile": lambda x: x.tile(2),
    "diag_embed": lambda x: x.diag_embed(),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long()),
    "repeat_interleave": lambda x: x.repeat_interleave(2, -1),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(1),
    "index": lambda x: x[tuple([torch.tensor([0], device=x.device)] * 64)],
    "index_put": lambda x: x.index_put([torch.tensor([0], device=x.device)] * 64, x.new_ones(1)),
    "index_add": lambda x: x.index_add(-1, torch.tensor([0], device=x.device), x[..., :1]),
    "scatter": lambda x: x.scatter(-1, torch.zeros_like(x).long(), 1.0),
    "searchsorted": lambda x: torch.searchsorted(x, x),
    "cdist": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("name", TOO_MANY)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_too_many_dimensions_raise_at_the_call(name, device):
    with torch.virtual(1):
        x = torch.ones((*ONES, 2), device=device)
        with pytest.raises(RuntimeError, match="only tensors with up to"):
            TOO_MANY[name](x)
        assert torch.ones(1, device="cuda").add(1).item() == 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sixty_four_dimensions_compute(device):
    with torch.virtual(1):
        x = torch.ones((*ONES, 2), device=device)
        assert (x + x).sum(-1).item() == 4
        assert x.gather(-1, torch.zeros_like(x).long()).flatten().tolist() == [1.0, 1.0]
        assert x.transpose(0, -1).contiguous().cumsum(0).flatten().tolist() == [1.0, 2.0]


COMPUTED = {
    "svdvals": torch.linalg.svdvals,
    "svd": lambda x: torch.linalg.svd(x)[1],
    "eigvalsh": torch.linalg.eigvalsh,
    "eigh": lambda x: torch.linalg.eigh(x)[0],
    "eig": lambda x: torch.linalg.eig(x)[0].real,
    "lstsq": lambda x: torch.linalg.lstsq(x, x).solution,
    "pinv": torch.linalg.pinv,
    "chebyshev": lambda x: torch.special.chebyshev_polynomial_t(x, 3),
    "legendre": lambda x: torch.special.legendre_polynomial_p(x, x + 1),
    "complex": lambda x: torch.complex(x, x).real,
    "polar": lambda x: torch.polar(x, x * 0).real,
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_of_numpy_with_fewer_dimensions_compute(name, device):
    """A matrix or a number of 1 in each, for which all results are 1."""
    with torch.virtual(1):
        x = torch.ones((2, *[1] * 63), device=device)
        assert torch.allclose(COMPUTED[name](x).flatten().cpu(), torch.ones(2))
