"""How results of linear algebra lie in memory: as PyTorch's LAPACK leaves them, matrices column by column."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support import from_torch, torch

import flambeau

SQUARE = ((3, 3), (2, 3, 3), (1, 3, 3), (2, 2, 3, 3), (0, 0), (2, 0, 0), (0, 3, 3), (1, 1), (2, 1, 1))
TALL = ((4, 2), (2, 4, 2), (3, 0), (2, 3, 0), (4, 1), (2, 4, 1), (0, 4, 2))
WIDE = ((2, 4), (2, 2, 4), (0, 3), (2, 0, 3), (1, 4), (2, 1, 4))
Run = Callable[..., Any]


def positive(room: Any, x: Any) -> Any:
    return x @ x.mT + 3 * room.eye(x.shape[-1], dtype=x.dtype)


OF_ANY: dict[str, Run] = {
    "qr": lambda m, x: m.linalg.qr(x),
    "qr complete": lambda m, x: m.linalg.qr(x, "complete"),
    "qr r": lambda m, x: m.linalg.qr(x, "r"),
    "torch.qr": lambda m, x: m.qr(x, False),
    "svd": lambda m, x: m.linalg.svd(x),
    "svd reduced": lambda m, x: m.linalg.svd(x, False),
    "torch.svd": lambda m, x: m.svd(x),
    "torch.svd of values": lambda m, x: m.svd(x, compute_uv=False),
    "svdvals": lambda m, x: m.linalg.svdvals(x),
    "lu": lambda m, x: m.linalg.lu(x),
    "lu_factor": lambda m, x: m.linalg.lu_factor(x),
    "lu_factor_ex": lambda m, x: m.linalg.lu_factor_ex(x),
    "Tensor.lu": lambda m, x: x.lu(),
    "lu_unpack": lambda m, x: m.lu_unpack(*m.linalg.lu_factor(x)),
    "pinv": lambda m, x: m.linalg.pinv(x),
    "geqrf": lambda m, x: m.geqrf(x),
    "norm 2": lambda m, x: m.linalg.matrix_norm(x, 2),
    "norm -2": lambda m, x: m.linalg.matrix_norm(x, -2, keepdim=True),
}  # fmt: skip
OF_WIDE: dict[str, Run] = {  # of a tall A PyTorch's solution is the top of a taller array
    "lstsq": lambda m, x: m.linalg.lstsq(x, m.ones(*x.shape[:-1], 2, dtype=x.dtype)),
    "lstsq gelsd": lambda m, x: m.linalg.lstsq(x, m.ones(*x.shape[:-1], 2, dtype=x.dtype), driver="gelsd"),
}
OF_TALL: dict[str, Run] = {
    "householder_product": lambda m, x: m.linalg.householder_product(*m.geqrf(x)),
}
OF_SQUARE: dict[str, Run] = {
    "eigh": lambda m, x: m.linalg.eigh(x),
    "eig": lambda m, x: m.linalg.eig(x),
    "inv": lambda m, x: m.linalg.inv(positive(m, x)),
    "inv_ex": lambda m, x: m.linalg.inv_ex(positive(m, x)),
    "solve": lambda m, x: m.linalg.solve(positive(m, x), x),
    "solve few": lambda m, x: m.linalg.solve(positive(m, x), x[..., :2]),
    "solve right": lambda m, x: m.linalg.solve(positive(m, x), x, left=False),
    "solve one for all": lambda m, x: m.linalg.solve(positive(m, x), m.ones(x.shape[-1], 2, dtype=x.dtype)),
    "solve_ex": lambda m, x: m.linalg.solve_ex(positive(m, x), x),
    "solve_triangular": lambda m, x: m.linalg.solve_triangular(positive(m, x), x, upper=True),
    "solve_triangular right": lambda m, x: m.linalg.solve_triangular(
        positive(m, x), x, upper=True, left=False
    ),
    "triangular_solve": lambda m, x: m.triangular_solve(x, positive(m, x)),
    "cholesky": lambda m, x: m.linalg.cholesky(positive(m, x)),
    "cholesky upper": lambda m, x: m.linalg.cholesky(positive(m, x), upper=True),
    "cholesky_ex": lambda m, x: m.linalg.cholesky_ex(positive(m, x)),
    "cholesky_inverse": lambda m, x: m.cholesky_inverse(positive(m, x)),
    "cholesky_solve": lambda m, x: m.cholesky_solve(x, positive(m, x)),
    "lu_solve": lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(positive(m, x)), x),
    "lu_solve right": lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(positive(m, x)), x, left=False),
    "lu_solve adjoint": lambda m, x: m.linalg.lu_solve(*m.linalg.lu_factor(positive(m, x)), x, adjoint=True),
    "matrix_exp": lambda m, x: m.linalg.matrix_exp(x),
    "matrix_power 0": lambda m, x: m.linalg.matrix_power(x, 0),
    "matrix_power 1": lambda m, x: m.linalg.matrix_power(x, 1),
    "matrix_power 3": lambda m, x: m.linalg.matrix_power(x, 3),
    "matrix_power -1": lambda m, x: m.linalg.matrix_power(positive(m, x), -1),
    "det": lambda m, x: m.linalg.det(x),
    "slogdet": lambda m, x: m.linalg.slogdet(x),
}
TABLE = (
    [(name, run, SQUARE + TALL + WIDE) for name, run in OF_ANY.items()]
    + [(name, run, SQUARE + WIDE) for name, run in OF_WIDE.items()]
    + [(name, run, TALL) for name, run in OF_TALL.items()]
    + [(name, run, SQUARE) for name, run in OF_SQUARE.items()]
    + [("ormqr", lambda m, x: m.ormqr(*m.geqrf(x), m.ones(*x.shape[:-1], 3, dtype=x.dtype)), TALL[:2])]
    + [("tensorinv", lambda m, x: m.linalg.tensorinv(x.reshape(6, 2, 3), ind=1), ((6, 6),))]
)


def layouts(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return [layouts(x) for x in found]
    return tuple(found.shape), tuple(found.stride())


def outcome(run: Run, room: Any, *tensors: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return layouts(run(room, *tensors))
        except (RuntimeError, IndexError) as error:
            return type(error).__name__


@pytest.mark.parametrize("name, run, shapes", TABLE, ids=[name for name, _, _ in TABLE])
def test_results(name: str, run: Run, shapes: Any) -> None:
    for kind in (torch.float64, torch.complex64):
        for shape in shapes:
            x = torch.randn(shape, dtype=kind, generator=torch.Generator().manual_seed(0))
            for laid in (x, x.mT.contiguous().mT):
                want, found = outcome(run, torch, laid), outcome(run, flambeau, from_torch(laid))
                assert found == want, (name, kind, shape)


WITH_OUT: dict[str, tuple[int, Run]] = {
    "qr": (2, lambda m, x, o: m.linalg.qr(x, out=o)),
    "svd": (3, lambda m, x, o: m.linalg.svd(x, out=o)),
    "eigh": (2, lambda m, x, o: m.linalg.eigh(x, out=o)),
    "inv": (1, lambda m, x, o: m.linalg.inv(positive(m, x), out=o[0])),
    "cholesky": (1, lambda m, x, o: m.linalg.cholesky(positive(m, x), out=o[0])),
    "solve": (1, lambda m, x, o: m.linalg.solve(positive(m, x), x, out=o[0])),
    "solve_triangular": (1, lambda m, x, o: m.linalg.solve_triangular(x, x, upper=True, out=o[0])),
    "lu": (3, lambda m, x, o: m.linalg.lu(x, out=o)),
    "pinv": (1, lambda m, x, o: m.linalg.pinv(x, out=o[0])),
    "matrix_power": (1, lambda m, x, o: m.linalg.matrix_power(x, 3, out=o[0])),
    "add": (1, lambda m, x, o: m.add(x.mT, x.mT, out=o[0])),
    "sort": (1, lambda m, x, o: m.sort(x.mT, out=(o[0], m.empty(0, dtype=m.int64)))),
}


@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.parametrize("size", ((0,), (7, 2), None))
def test_out_that_is_resized_lies_as_a_result_and_one_that_fits_stays(name: str, size: Any) -> None:
    count, run = WITH_OUT[name]
    for shape in ((3, 3), (2, 3, 3)):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        given = [torch.empty(size or shape, dtype=torch.float64) for _ in range(count)]
        if name in ("svd", "eigh"):
            at = 1 if name == "svd" else 0
            given[at] = torch.empty(size or shape[:-1], dtype=torch.float64)
        ours = [from_torch(t) for t in given]
        assert outcome(run, flambeau, from_torch(x), ours) == outcome(run, torch, x, given)
        assert layouts(ours) == layouts(given)


@pytest.mark.parametrize("name", WITH_OUT)
def test_an_out_that_held_elements_is_resized_with_pytorchs_warning(name: str) -> None:
    count, run = WITH_OUT[name]
    said = []
    for room in (flambeau, torch):
        x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        given = [torch.empty(7, 2, dtype=torch.float64) for _ in range(count)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(room, *((from_torch(x), [from_torch(t) for t in given]) if room is flambeau else (x, given)))
        said.append(sorted(str(w.message).split(" (Triggered")[0] for w in caught))
    assert len(said[0]) == count
    assert said[0] == said[1]
