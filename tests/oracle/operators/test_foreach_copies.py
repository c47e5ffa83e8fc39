"""Copies of lists of tensors in one launch, beside PyTorch's, whatever dtypes and layouts meet."""

import pytest
from support import from_torch, to_torch, torch

import flambeau
from flambeau.tensor.functions.foreach_update import copy

FLOATS = ("float64", "float32", "float16", "bfloat16")


@pytest.fixture(scope="module")
def machine():
    with flambeau.virtual(1):
        yield


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.usefixtures("machine")
def test_copies_and_scaled_copies_have_pytorchs_bits(device, target, source):
    torch.manual_seed(1)
    theirs = [torch.randn(s).to(getattr(torch, source)) for s in ((5, 3), (7,), (), (0, 2), (2, 3, 4, 1))]
    theirs[0] = theirs[0].t()
    wide = torch.promote_types(getattr(torch, target), torch.float32)
    for scale in (None, 1 / 3):
        wanted = [t if scale is None else t.to(wide) * scale for t in theirs]
        ours = [
            flambeau.empty_like(from_torch(w), device=device, dtype=getattr(flambeau, target)) for w in wanted
        ]
        copy(ours, [from_torch(t).to(device) for t in theirs], scale)
        for got, want in zip(ours, wanted, strict=True):
            assert torch.equal(to_torch(got.cpu()), want.to(getattr(torch, target)))
