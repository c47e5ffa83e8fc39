"""Gradients of linear algebra on a virtual GPU: the CPU's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import flambeau as torch

CALLS: dict[str, Callable[[Any], Any]] = {
    "inv": lambda a: torch.linalg.inv(a),
    "det": lambda a: torch.linalg.det(a),
    "solve": lambda a: torch.linalg.solve(a, a[:, :2]),
    "lu": lambda a: torch.linalg.lu(a)[1],
    "qr": lambda a: torch.linalg.qr(a)[0],
    "svdvals": lambda a: torch.linalg.svdvals(a),
    "svd": lambda a: torch.linalg.svd(a)[0].abs(),
    "eigh": lambda a: torch.linalg.eigh(a + a.mT)[1].abs(),
    "eigvals": lambda a: torch.linalg.eigvals(a).abs(),
    "pinv": lambda a: torch.linalg.pinv(a),
    "lstsq": lambda a: torch.linalg.lstsq(a[:, :2], a)[0],
    "householder_product": lambda a: torch.linalg.householder_product(a, a[0]),
    "cdist": lambda a: torch.cdist(a, 2 * a, 1.5),
    "cdist by a product": lambda a: torch.cdist(a, 2 * a, 2, "use_mm_for_euclid_dist"),
    "cross": lambda a: torch.linalg.cross(a, a.mT),
}


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    with torch.virtual(devices=1):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_the_cpus(name: str) -> None:
    found = []
    for where in ("cpu", "cuda"):
        a = (torch.arange(9.0).reshape(3, 3).sin() + 3 * torch.eye(3)).to(where).requires_grad_()
        CALLS[name](a).sum().backward()
        assert a.grad.device.type == where
        found.append(a.grad.tolist())
    assert found[0] == found[1]
