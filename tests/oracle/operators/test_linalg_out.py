"""`out=` of linear algebra, and what it does to dtypes without and with it: results, refusals and their texts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import from_torch, to_torch, torch

import flambeau

KINDS = ("float32", "float64", "float16", "complex64", "int64", "int32", "uint8", "bool")
OUT: dict[str, Callable[..., Any]] = {
    "inv": lambda room, x, o: room.linalg.inv(x, out=o),
    "det": lambda room, x, o: room.linalg.det(x, out=o),
    "pinv": lambda room, x, o: room.linalg.pinv(x, out=o),
    "cond": lambda room, x, o: room.linalg.cond(x, out=o),
    "solve": lambda room, x, o: room.linalg.solve(x, x, out=o),
    "svdvals": lambda room, x, o: room.linalg.svdvals(x, out=o),
    "norm": lambda room, x, o: room.linalg.norm(x, out=o),
    "norm of vectors": lambda room, x, o: room.linalg.norm(x[0], 3, out=o),
    "matrix_norm": lambda room, x, o: room.linalg.matrix_norm(x, 1, out=o),
    "vector_norm": lambda room, x, o: room.linalg.vector_norm(x, out=o),
    "vecdot": lambda room, x, o: room.linalg.vecdot(x, x, out=o),
    "multi_dot": lambda room, x, o: room.linalg.multi_dot([x, x, x], out=o),
    "chain_matmul": lambda room, x, o: room.chain_matmul(x, x, out=o),
    "tensorinv": lambda room, x, o: room.linalg.tensorinv(x, 1, out=o),
    "tensorsolve": lambda room, x, o: room.linalg.tensorsolve(x, x[0], out=o),
    "cholesky_solve": lambda room, x, o: room.cholesky_solve(x, x, out=o),
    "cholesky_inverse": lambda room, x, o: room.cholesky_inverse(x, out=o),
    "householder_product": lambda room, x, o: room.linalg.householder_product(x, x[0], out=o),
    "matmul": lambda room, x, o: room.matmul(x, x, out=o),
    "inner": lambda room, x, o: room.inner(x, x, out=o),
    "outer": lambda room, x, o: room.outer(x[0], x[1], out=o),
    "tensordot": lambda room, x, o: room.tensordot(x, x, 1, out=o),
    "kron": lambda room, x, o: room.kron(x, x, out=o),
    "addr": lambda room, x, o: room.addr(x, x[0], x[1], out=o),
    "norm by position": lambda room, x, o: room.norm(x, 2, None, False, o),
    "frobenius_norm": lambda room, x, o: room.frobenius_norm(x, (0, 1), out=o),
    "nuclear_norm": lambda room, x, o: room.nuclear_norm(x, out=o),
    "argsort": lambda room, x, o: room.argsort(x, stable=True, out=o),
    "renorm": lambda room, x, o: room.renorm(x, 2, 0, 1, out=o),
    "cross": lambda room, x, o: room.linalg.cross(x, x, out=o),
}
OWN_TEXT = {"outer", "addr"}  # whose refusals have the words of another function


def outcome(room: Any, run: Callable[..., Any], *tensors: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(room, *[from_torch(t) if room is flambeau else t.clone() for t in tensors])
        except (RuntimeError, NotImplementedError) as error:
            return error


def agree(run: Callable[..., Any], *tensors: Any, text: bool = True) -> None:
    theirs, ours = outcome(torch, run, *tensors), outcome(flambeau, run, *tensors)
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), f"{ours!r} where PyTorch raises {theirs!r}"
        assert not text or str(ours) == str(theirs)
        return
    if isinstance(ours, Exception):
        raise ours
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    limit = 2e-2 if theirs.dtype is torch.float16 else 1e-4
    np.testing.assert_allclose(
        to_torch(ours).to(torch.complex128).numpy(), theirs.to(torch.complex128).numpy(), limit, limit
    )


def matrix(kind: str = "float32", seed: int = 0) -> Any:
    x = torch.from_numpy(np.random.default_rng(seed).uniform(-2, 2, (3, 3))) + 4 * torch.eye(3)
    return x.to(getattr(torch, kind))


@pytest.mark.parametrize("kind", ("float32", "float64", "int64", "complex64"))
@pytest.mark.parametrize("name", OUT)
def test_out(name: str, kind: str) -> None:
    for shape in ((3, 3), (0,)):
        out = torch.zeros(shape, dtype=getattr(torch, kind))
        agree(lambda room, x, o: (OUT[name](room, x, o), o)[1], matrix(), out, text=name not in OWN_TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind: str) -> None:
    x = matrix(kind)
    for factors in ({}, {"beta": 0}, {"beta": 2, "alpha": 3}, {"beta": 0.5}, {"alpha": 0.5}, {"alpha": True}):
        agree(lambda room, x, k=factors: room.addr(x, x[0], x[1], **k), x)
    agree(lambda room, x: room.addr(x, x[0].double(), x[1]), x)
    for equation in ("ii", "ij->i", "ij->", "ij->ji", "ii->i", "ij->j"):
        agree(lambda room, x, e=equation: room.einsum(e, x), x)
    agree(lambda room, x: room.einsum("ij,ij->ij", x, x), x)
    agree(lambda room, x: room.trace(x), x)
    agree(lambda room, x: room.linalg.vander(x), x)
    agree(lambda room, x: room.dist(x, x * 2), x)
    agree(lambda room, x: room.logdet(x), x)
    if kind not in ("complex64",):
        agree(lambda room, x: room.cholesky_inverse(x), x)
        agree(lambda room, x: room.cholesky_solve(x, x), x)


def test_addr_of_nan() -> None:
    """With beta 0 the input is not read."""
    nan = flambeau.full((2, 2), float("nan"))
    ones = flambeau.ones(2)
    assert flambeau.addr(nan, ones, ones, beta=0).tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(RuntimeError, match="expanded size"):
        flambeau.addr(flambeau.ones(3, 3), ones, ones)


REFLECTORS: dict[str, Callable[..., Any]] = {
    "rows": lambda room, a, t, c: room.ormqr(a, t, c[:3]),
    "columns": lambda room, a, t, c: room.ormqr(a, t, c, left=False),
    "few factors": lambda room, a, t, c: room.ormqr(a, t[:2], c),
    "a vector": lambda room, a, t, c: room.ormqr(a, t, c[:, 0]),
    "a vector of reflectors": lambda room, a, t, c: room.ormqr(a[0], t, c),
    "a batch": lambda room, a, t, c: room.ormqr(a, t, c.unsqueeze(0)),
    "a batch of factors": lambda room, a, t, c: room.ormqr(a, t.unsqueeze(0), c),
    "another dtype": lambda room, a, t, c: room.ormqr(a, t.double(), c),
    "another dtype of the matrix": lambda room, a, t, c: room.ormqr(a, t, c.double()),
    "half": lambda room, a, t, c: room.ormqr(a.half(), t.half(), c.half()),
    "fits": lambda room, a, t, c: a.ormqr(t, c),
    "the other side": lambda room, a, t, c: room.ormqr(a, t, c.mT, False, True),
}


@pytest.mark.parametrize("name", REFLECTORS)
def test_ormqr(name: str) -> None:
    a, tau = torch.geqrf(torch.cat([matrix(), matrix(seed=1)[:1]]))
    agree(REFLECTORS[name], a, tau, torch.cat([matrix(seed=2), matrix(seed=3)[:1]])[:, :2])


def test_lu_by_its_older_name() -> None:
    x = matrix()
    for run in (
        lambda room, x: room.lu(x)[0],
        lambda room, x: x.lu()[1],
        lambda room, x: room.lu(x, get_infos=True)[2],
        lambda room, x: room.lu(x, pivot=False)[0],
        lambda room, x: room.lu(x[0])[0],
    ):
        agree(run, x)
