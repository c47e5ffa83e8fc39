"""`torch.lobpcg`: eigenpairs and gradients, compared with PyTorch's and with `eigh`."""

# ruff: noqa: N803, N806 (E and X, as in PyTorch)

from itertools import pairwise

import pytest

import flambeau as torch
from flambeau.core.errors import NotSupportedError

oracle = pytest.importorskip("torch")


def symmetric(m, seed, batch=(), positive=False):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*batch, m, m, generator=g, dtype=torch.float64)
    return x @ x.mT / m + torch.eye(m, dtype=torch.float64) if positive else x + x.mT


def theirs(x):
    return None if x is None else oracle.from_numpy(x.detach().numpy().copy())


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(("batch", "m", "k", "n"), [((), 30, 3, 5), ((2, 2), 12, 1, 2), ((), 9, 3, 3)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_eigenpairs_are_pytorchs(device, batch, m, k, n, general, largest):
    a, b = symmetric(m, 1, batch), symmetric(m, 2, batch, positive=True) if general else None
    x = torch.randn(*batch, m, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    want, _ = oracle.lobpcg(theirs(a), k, B=theirs(b), X=theirs(x), largest=largest, tol=1e-9)
    with torch.virtual(1):
        given = [None if t is None else t.to(device) for t in (a, b, x)]
        E, X = torch.lobpcg(given[0], k, B=given[1], X=given[2], largest=largest, tol=1e-9)
        E, X = E.cpu(), X.cpu()
    assert E.shape == (*batch, k) and X.shape == (*batch, m, k)
    torch.testing.assert_close(E, torch.from_numpy(want.numpy()), rtol=1e-9, atol=1e-9)
    scaled = X if b is None else b @ X
    torch.testing.assert_close(a @ X, scaled * E.unsqueeze(-2), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        X.mT @ scaled, torch.eye(k, dtype=torch.float64).expand(*batch, k, k), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_are_those_of_pytorch_and_eigh(batch):
    m, k = 15, 3
    a = symmetric(m, 4, batch)
    weights = torch.randn(m, m, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(E, X, weights):  # the same for each sign of the eigenvectors
        return (E.sin().sum() + ((X @ X.mT) * weights).sum()) + ((X * X) ** 2).sum()

    mine = a.clone().requires_grad_()
    loss(*torch.lobpcg(mine, k, niter=-1, tol=1e-12), weights).backward()
    other = theirs(a).requires_grad_()
    loss(*oracle.lobpcg(other, k, niter=-1, tol=1e-12), theirs(weights)).backward()
    exact = a.clone().requires_grad_()
    E, X = torch.linalg.eigh((exact + exact.mT) / 2)
    loss(E[..., -k:].flip(-1), X[..., -k:].flip(-1), weights).backward()
    torch.testing.assert_close(mine.grad, exact.grad, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(mine.grad, torch.from_numpy(other.grad.numpy()), rtol=1e-5, atol=1e-5)


def test_a_sparse_matrix_has_eigenpairs_and_no_gradient():
    a = symmetric(24, 6)
    a = torch.where(a.abs() > 1.5, a, 0.0)
    E, _ = torch.lobpcg(a.to_sparse(), 2, tol=1e-10)
    torch.testing.assert_close(E, torch.linalg.eigvalsh(a)[-2:].flip(0))
    E, _ = torch.lobpcg(a.to_sparse().requires_grad_(), 2)
    with pytest.raises(ValueError, match="does not support sparse input"):
        E.sum().backward()


def test_a_tracker_reads_the_steps_and_stops_them():
    seen = []

    def tracker(worker):
        seen.append((worker.ivars["istep"], worker.E.clone(), worker.tvars["rerr"].clone()))
        worker.bvars["force_stop"] = len(seen) == 4

    torch.manual_seed(0)
    torch.lobpcg(symmetric(40, 7), 2, tracker=tracker, tol=0.0)
    assert [step for step, *_ in seen] == [0, 1, 2, 3]
    assert all(bool((later[1] >= sooner[1]).all()) for sooner, later in pairwise(seen))


def test_a_preconditioner_saves_steps():
    m = 60
    diagonal = torch.arange(1.0, m + 1, dtype=torch.float64) ** 2
    a = torch.diag(diagonal) + 0.01 * symmetric(m, 8)
    steps = []
    for inverse in (None, torch.diag(1 / diagonal)):
        torch.manual_seed(0)
        count = []
        E, _ = torch.lobpcg(
            a, 2, iK=inverse, largest=False, tracker=lambda w, count=count: count.append(1), tol=1e-8
        )
        torch.testing.assert_close(E, torch.linalg.eigvalsh(a)[:2], rtol=1e-7, atol=1e-7)
        steps.append(len(count))
    assert steps[1] < steps[0] / 2, steps


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (lambda t: {"A": t.zeros(3, 4)}, AssertionError),
        (lambda t: {"A": t.eye(6), "B": t.eye(5)}, AssertionError),
        (lambda t: {"A": t.eye(6), "k": 3}, ValueError),
    ],
)
def test_wrong_arguments_raise_pytorchs_exceptions(arguments, error):
    with pytest.raises(error) as of_pytorch:
        oracle.lobpcg(**arguments(oracle))
    with pytest.raises(error) as ours:
        torch.lobpcg(**arguments(torch))
    assert str(ours.value) == str(of_pytorch.value)


def test_what_is_not_supported_raises():
    a = symmetric(9, 9)
    with pytest.raises(NotSupportedError, match="ortho_iparams"):
        torch.lobpcg(a, ortho_iparams={"ortho_i_max": 2})
    with pytest.raises(ValueError, match="method"):
        torch.lobpcg(a, method="other")
    E, _ = torch.lobpcg(a.requires_grad_(), B=symmetric(9, 1, positive=True))
    with pytest.raises(ValueError, match="B != None"):
        E.sum().backward()
