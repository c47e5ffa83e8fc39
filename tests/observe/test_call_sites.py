"""The race detector looks for the program's line some frames further out than it is called: never too far."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import flambeau as torch
from flambeau.core.callsite import Site, caller, is_inside, line_of
from flambeau.nn import functional as F
from flambeau.runtime import system

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a + 1": lambda a, b: a + 1,
    "2 - a": lambda a, b: 2 - a,
    "-a": lambda a, b: -a,
    "a += b": lambda a, b: a.__iadd__(b),
    "a == b": lambda a, b: a == b,
    "a @ b": lambda a, b: a @ b,
    "sum()": lambda a, b: sum([a, b]),
    "map": lambda a, b: list(map(torch.neg, [a, b])),
    "partial": lambda a, b: partial(torch.add, a)(b),
    "add": lambda a, b: torch.add(a, b),
    "add out=": lambda a, b: torch.add(a, b, out=torch.empty(0, device="cuda")),
    "exp_": lambda a, b: a.exp_(),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "sum": lambda a, b: a.sum(),
    "max(0)": lambda a, b: a.max(0),
    "cumsum": lambda a, b: a.cumsum(0),
    "sort": lambda a, b: a.sort(),
    "cat": lambda a, b: torch.cat([a, b]),
    "a[1:]": lambda a, b: a[1:] + 1,
    "a[mask]": lambda a, b: a[a > 0],
    "a[0] = 1": lambda a, b: a.__setitem__(0, 1),
    "a.T.contiguous": lambda a, b: a.T.contiguous(),
    "double": lambda a, b: a.double(),
    "cpu": lambda a, b: a.cpu(),
    "item": lambda a, b: a.sum().item(),
    "print": lambda a, b: repr(a),
    "clone": lambda a, b: a.clone(),
    "copy_": lambda a, b: a.copy_(b),
    "zeros": lambda a, b: torch.zeros(8, device="cuda"),
    "arange": lambda a, b: torch.arange(8, device="cuda"),
    "randn": lambda a, b: torch.randn(8, device="cuda"),
    "bernoulli_": lambda a, b: a.bernoulli_(0.5),
    "relu": lambda a, b: F.relu(a),
    "linear": lambda a, b: F.linear(a, b),
    "softmax": lambda a, b: F.softmax(a, 0),
    "layer_norm": lambda a, b: F.layer_norm(a, (8,)),
    "dropout": lambda a, b: F.dropout(a),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "fft": lambda a, b: torch.fft.fft(a),
    "inv": lambda a, b: torch.linalg.inv(a + 9 * torch.eye(8, device="cuda")),
    "_sleep": lambda a, b: torch.cuda._sleep(10),
    "backward": lambda a, b: (a.requires_grad_() * b).sum().backward(),
    "grad of a grad": lambda a, b: torch.autograd.grad(
        torch.autograd.grad((a.requires_grad_() ** 3).sum(), a, create_graph=True)[0].sum(), a
    ),
    "Adam": lambda a, b: _step(torch.optim.Adam, a, b),
    "SGD": lambda a, b: _step(torch.optim.SGD, a, b),
    "clip_grad_norm_": lambda a, b: (_step(torch.optim.SGD, a, b), torch.nn.utils.clip_grad_norm_([a], 1.0)),
}  # fmt: skip


def _step(kind: Any, a: Any, b: Any) -> None:
    a.requires_grad_().grad = b
    kind([a], lr=0.1).step()


def _innermost() -> Site:
    """The innermost frame of the program, found by looking at all of them."""
    frame: Any = sys._getframe(2)
    while is_inside(frame.f_code):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


@pytest.mark.parametrize("name", CALLS)
def test_the_line_found_is_the_innermost_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def checked(depth: int = 1) -> Site:
        found.append((caller(depth + 1), _innermost()))
        return found[-1][0]

    monkeypatch.setattr("flambeau.observe.detector.caller", checked)
    with torch.virtual(devices=1, races="warn"):
        a, b = torch.rand(8, 8, device="cuda"), torch.rand(8, 8, device="cuda")
        for _ in range(2):  # once to plan it, once by the warm path
            CALLS[name](a.clone(), b.clone())
    assert found
    assert all(is_inside(site[0]) is False for site, _ in found)
    assert [site for site, _ in found] == [expected for _, expected in found]


def test_where_a_result_was_allocated_is_told() -> None:
    """A result's memory is handed out before the launch that writes it, which says where."""
    with torch.virtual(devices=1, races="warn"):
        side = torch.cuda.Stream()
        a = torch.ones(64, device="cuda")
        made, line = a + a, sys._getframe().f_lineno
        with torch.cuda.stream(side):
            made.mul_(2)
        given, given_line = torch.empty(64, device="cuda"), sys._getframe().f_lineno
        torch.add(a, a, out=given)
        with torch.cuda.stream(side):
            given.mul_(2)
        certificate = system.context_of(torch.device("cuda:0")).driver.detector.certificate()
    places = {(site[0].co_filename, line_of(site)) for site in [race.allocated for race in certificate.races]}
    assert places == {(__file__, line), (__file__, given_line)}
