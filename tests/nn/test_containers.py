"""Sequential, ModuleList, ModuleDict, ParameterList and ParameterDict against PyTorch's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from nn_kit import agree


def row(t: Any) -> Any:
    return t.nn.Sequential(t.nn.Linear(1, 2), t.nn.ReLU(), t.nn.Linear(2, 3))


def listed(t: Any) -> Any:
    return t.nn.ModuleList([t.nn.Linear(1, 2), t.nn.ReLU(), t.nn.Linear(2, 3)])


PLAYS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda t, m: len(m),
    lambda t, m: [m[0], m[-1], m[1:], m[::-1]],
    lambda t, m: m[3],
    lambda t, m: m[-4],
    lambda t, m: m["0"],
    lambda t, m: m.append(t.nn.Tanh()),
    lambda t, m: m.append(3),
    lambda t, m: [m.insert(1, t.nn.Tanh()), m],
    lambda t, m: [m.insert(-1, t.nn.Tanh()), m],
    lambda t, m: [m.pop(1), m],
    lambda t, m: [m.pop(-1), m],
    lambda t, m: m.pop(7),
    lambda t, m: [m.__delitem__(0), m, m.state_dict()],
    lambda t, m: [m.__delitem__(slice(0, 2)), m],
    lambda t, m: m.__delitem__(9),
    lambda t, m: [m.__setitem__(1, t.nn.Tanh()), m],
    lambda t, m: [m.__setitem__(-1, t.nn.Tanh()), m],
    lambda t, m: m.__setitem__(5, t.nn.Tanh()),
    lambda t, m: list(m),
    lambda t, m: m.extend([t.nn.Tanh(), t.nn.Tanh()]),
    lambda t, m: [n for n in dir(m) if n.isdigit()],
)


@pytest.mark.parametrize("index", range(len(PLAYS)))
@pytest.mark.parametrize("make", (row, listed))
def test_rows_of_modules(make: Callable[[Any], Any], index: int) -> None:
    if make is listed and index == 8:
        return  # PyTorch's KeyError; ours inserts as Python's lists do
    agree(lambda t: PLAYS[index](t, make(t)))


def test_sequential_alone() -> None:
    named = lambda t: t.nn.Sequential(OrderedDict(a=t.nn.Linear(1, 1), b=t.nn.ReLU(), c=t.nn.Tanh()))  # noqa: E731
    agree(named)
    agree(lambda t: named(t).a)
    agree(lambda t: named(t)[1:])
    agree(lambda t: [named(t).__delitem__(1), named(t).state_dict()])
    agree(lambda t: row(t)(t.ones(1, 1)))
    agree(lambda t: row(t) + row(t))
    agree(lambda t: row(t) + 3)
    agree(lambda t: row(t) * 2)
    agree(lambda t: 2 * row(t))
    agree(lambda t: row(t) * 0)
    agree(lambda t: row(t).__iadd__(row(t)))
    agree(lambda t: row(t).__imul__(2))
    agree(lambda t: row(t).__imul__("x"))
    agree(lambda t: row(t).insert(9, t.nn.ReLU()))


def test_module_lists_alone() -> None:
    agree(
        lambda t: t.nn.ModuleList(
            [t.nn.Linear(1, 1)] * 3 + [t.nn.ReLU()] + [t.nn.Sequential(t.nn.ReLU())] * 2
        )
    )
    agree(lambda t: t.nn.ModuleList())
    agree(lambda t: listed(t).__add__([t.nn.ReLU()]))
    agree(lambda t: listed(t).__iadd__([t.nn.ReLU()]))
    agree(lambda t: listed(t).extend(3))
    agree(lambda t: listed(t)(1))


def test_module_dicts() -> None:
    make = lambda t: t.nn.ModuleDict({"b": t.nn.Linear(1, 1), "a": t.nn.ReLU()})  # noqa: E731
    agree(make)
    agree(
        lambda t: [
            list(make(t)),
            list(make(t).keys()),
            list(make(t).values()),
            list(make(t).items()),
            len(make(t)),
        ]
    )
    agree(lambda t: [make(t)["b"], "b" in make(t), "c" in make(t), make(t).pop("a")])
    agree(lambda t: make(t)["c"])
    agree(lambda t: make(t).pop("c"))
    for more in ([["c", 1]], [1], 1, [("a", "b", "c")], "ab"):
        agree(lambda t, more=more: make(t).update(more))

    def play(t: Any) -> Any:
        m = make(t)
        m["c"] = t.nn.Tanh()
        m.update([("d", t.nn.ReLU())])
        m.update(t.nn.ModuleDict({"e": t.nn.ReLU()}))
        del m["a"]
        text = repr(m)
        m.clear()
        return [text, m]

    agree(play)


def test_parameter_lists() -> None:
    make = lambda t: t.nn.ParameterList([t.ones(2, 3), t.nn.Parameter(t.zeros(())), 3, "x"])  # noqa: E731
    agree(make)
    agree(lambda t: [repr(p) for p in make(t)])
    agree(lambda t: make(t)[1:3])
    agree(lambda t: make(t)[-4])
    agree(lambda t: make(t)[7])
    agree(lambda t: make(t).state_dict())
    agree(lambda t: make(t).append(t.ones(1)))
    agree(lambda t: make(t).__iadd__([t.ones(1)]))
    agree(lambda t: [make(t).__setitem__(2, t.ones(1)), len(make(t))])
    agree(lambda t: make(t).extend(3))
    agree(lambda t: make(t).extend(t.ones(2)))
    agree(lambda t: make(t)(1))
    agree(lambda t: [n for n in dir(make(t)) if n.isdigit()])


def test_parameter_dicts() -> None:
    make = lambda t: t.nn.ParameterDict({"b": t.ones(2, 3), "a": t.nn.Parameter(t.zeros(())), "c": 3})  # noqa: E731
    agree(make)
    agree(lambda t: [list(make(t)), list(reversed(make(t))), list(make(t).items()), list(make(t).values())])
    agree(
        lambda t: [
            make(t).get("z"),
            make(t).get("c"),
            make(t).setdefault("z", 5),
            "a" in make(t),
            len(make(t)),
        ]
    )
    agree(lambda t: make(t).popitem())
    agree(lambda t: make(t).pop("a"))
    agree(lambda t: make(t)["z"])
    agree(lambda t: make(t)[3])
    agree(lambda t: make(t).copy())
    agree(lambda t: make(t).fromkeys(["x", "y"], 1))
    agree(lambda t: make(t) | t.nn.ParameterDict({"z": t.ones(1), "a": 4}))
    agree(lambda t: make(t).__ior__({"z": t.ones(1)}))
    agree(lambda t: make(t).update([1]))
    agree(lambda t: make(t).update(5))
    agree(lambda t: make(t).update([("a", 1, 2)]))
    agree(lambda t: make(t)(1))
    agree(lambda t: make(t).state_dict())

    def play(t: Any) -> Any:
        m = make(t)
        m["d"] = t.ones(1)
        del m["a"]
        text = repr(m)
        m.clear()
        return [text, m]

    agree(play)
