"""What recording does not do: anything where nothing is recorded, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flambeau as torch
from flambeau.tensor import call
from flambeau.tensor.autograd import recorded_call, recording

CALLS: dict[str, Callable[[Any], Any]] = {
    "binary": lambda x: x + x,
    "scalar": lambda x: x * 2,
    "unary": lambda x: x.tanh(),
    "call": lambda x: x.sum(),
}


@pytest.mark.parametrize("name", CALLS)
def test_under_no_grad_the_tape_is_not_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, requires_grad=True)
    expected = CALLS[name](x).detach().tolist()  # plans
    asked: list[Any] = []
    number = recording.next_sequence

    def counted() -> int:
        asked.append(name)
        return number()

    monkeypatch.setattr(recording, "next_sequence", counted)  # in the compiled build, too
    if name != "call":
        monkeypatch.setattr(call, "call", lambda *args: asked.append(args))
    with torch.no_grad():
        y = CALLS[name](x)
    assert not asked
    assert y.history is None
    assert y.tolist() == expected
    CALLS[name](x)
    assert len(asked) == 1, "one node is made where it is recorded"


@pytest.mark.parametrize("name", CALLS)
def test_what_is_saved_is_decided_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = recorded_call.SavedSpec.__init__

    def counted(self: Any, *args: Any) -> None:
        made.append(args)
        original(self, *args)

    CALLS[name](torch.ones(3, requires_grad=True))
    monkeypatch.setattr(recorded_call.SavedSpec, "__init__", counted)
    for size in (3, 3, 5):  # of another plan, too
        CALLS[name](torch.ones(size, requires_grad=True)).sum().backward()
    assert len(made) <= (name != "call"), "only the sum's"
