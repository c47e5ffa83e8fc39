"""Calls with ever new shapes compute what NumPy computes, on the CPU and on virtual GPUs, races included.

Shapes are drawn with a seed, so that each structure is planned one by one at first and by its tree afterwards.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core import meta as metas
from flambeau.core.meta import Meta
from flambeau.core.tracing import plan_tree
from flambeau.core.tracing.plan_tree import PlanTree
from flambeau.core.tracing.symbols import PlanTrace, ShapeGraph
from flambeau.ops.op import table
from flambeau.tensor import call, structures
from flambeau.tensor.autograd import autograd_meta
from flambeau.tensor.autograd.recording import RecordPlan
from flambeau.tensor.functions import creation

Case = tuple[Callable[[Any], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "add": (lambda x: x + x, lambda a: a + a),
    "broadcast": (lambda x: x * x[0] + x[:, :1], lambda a: a * a[0] + a[:, :1]),
    "in place": (lambda x: x.clone().mul_(x), lambda a: a * a),
    "transposed": (lambda x: (x.t() + 1).contiguous(), lambda a: a.T + 1),
    "slices": (lambda x: x[1:, ::2] - x[:-1, ::2], lambda a: a[1:, ::2] - a[:-1, ::2]),
    "views": (lambda x: x.reshape(-1)[3:].neg(), lambda a: -a.reshape(-1)[3:]),
    "sum": (lambda x: x.sum(0), lambda a: a.sum(0)),
    "argmax": (lambda x: x.argmax(-1), lambda a: a.argmax(-1)),
    "cumsum": (lambda x: x.cumsum(1), lambda a: a.cumsum(1)),
    "cat": (lambda x: torch.cat([x, x[1:]]), lambda a: np.concatenate([a, a[1:]])),
    "stack": (lambda x: torch.stack([x, x], 1), lambda a: np.stack([a, a], 1)),
    "product": (lambda x: x @ x.t(), lambda a: a @ a.T),
    "index": (lambda x: x[torch.tensor([1, 0], device=x.device)], lambda a: a[[1, 0]]),
    "where": (lambda x: torch.where(x > 3, x, 0.5), lambda a: np.where(a > 3, a, np.float32(0.5))),
    "expand": (lambda x: x[None].expand(2, -1, -1) * 2, lambda a: np.broadcast_to(a, (2, *a.shape)) * 2),
    "interpolate": (
        lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2)[0, 0],
        lambda a: a.repeat(2, 0).repeat(2, 1),
    ),
    "zeros": (lambda x: torch.zeros(x.shape[0], 2, device=x.device) + x[:, :2], lambda a: a[:, :2]),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_new_shapes_compute_what_numpy_does(name: str, device: str) -> None:
    ours, theirs = CASES[name]
    draw = random.Random(name)
    with torch.virtual(devices=1, races="error"):
        for _ in range(30):
            array = np.float32(np.random.RandomState(draw.randrange(999)).randint(0, 9, _shape(draw)))
            np.testing.assert_allclose(ours(torch.tensor(array, device=device)).cpu().numpy(), theirs(array))


@pytest.mark.parametrize("name", CASES)
def test_trees_plan_new_shapes_of_known_structures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = CASES[name]
    monkeypatch.setattr(plan_tree, "REPORT", True)
    with torch.virtual(devices=1):
        for n in range(20, 32):
            ours(torch.ones(n, n + 17, device="cuda"))
        planners = ((call, "_make_plan"), (call, "_make_plan_into"), (autograd_meta, "ViewPlan"))
        for module, planner in (*planners, (PlanTree, "learn")):  # compiled code calls only the last two
            monkeypatch.setattr(module, planner, _refuse)
        for n in range(32, 60):
            ours(torch.ones(n, n + 17, device="cuda"))


def _refuse(*args: Any) -> None:
    raise AssertionError("a call is planned individually")


RECORDED: dict[str, Callable[[Any], tuple[Any, ...]]] = {  # operator -> its inputs and params, from a tensor
    "add": lambda x: ((x, x), ()),
    "mul": lambda x: ((x, 2.0), ()),
    "gt": lambda x: ((x, 1), ()),
    "where": lambda x: ((x > 0, x, x), ()),
    "cat": lambda x: ((x, x), (0,)),
    "amax": lambda x: ((x,), ((0,), False, None)),
    "sort": lambda x: ((x,), (0, x.shape[1] % 2 == 0)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_record_plans_of_a_shape_equal_new_ones(name: str) -> None:
    op = table[name]

    def parts_of(x: Any) -> tuple[Any, ...]:
        args, params = RECORDED[name](x)
        return params, args, call.signature(op, args, params).outputs

    params, args, outputs = parts_of(torch.ones(3, 4))
    first = RecordPlan(op, params, args, outputs)
    params, args, outputs = parts_of(torch.ones(5, 7))
    found, expected = first.of_shape(params, args, outputs), RecordPlan(op, params, args, outputs)
    names = [name for name in dir(RecordPlan) if not name.startswith("__")]
    fields = [name for name in names if not callable(getattr(RecordPlan, name))]  # __slots__ is not compiled
    assert "saved_specs" in fields
    for field in fields:
        assert getattr(found, field) == getattr(expected, field), field


def _shape(draw: random.Random) -> tuple[int, int]:
    return draw.choice((2, 3, draw.randint(2, 40))), draw.choice((2, draw.randint(2, 40)))


def test_gradients_of_new_shapes_match_a_formula() -> None:
    draw = random.Random(5)
    weight = torch.ones(6, 3, requires_grad=True)
    for _ in range(20):
        x = torch.rand(draw.randint(2, 50), 6)
        weight.grad = None
        (x @ weight).tanh().sum().backward()
        slope = 1 - np.tanh(x.numpy() @ np.ones((6, 3), np.float32)) ** 2
        np.testing.assert_allclose(weight.grad.numpy(), x.numpy().T @ slope, rtol=2e-3, atol=1e-5)


def test_races_are_found_in_plans_of_trees() -> None:
    """The record of a launch that a tree gives states the sizes of its own call."""
    with torch.virtual(devices=1, races="error"):
        for n in range(3, 20):
            (torch.ones(n, device="cuda") + 1).sum()
        side = torch.cuda.Stream()
        x = torch.ones(4096, device="cuda")
        part = x[4000:]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            part.add_(1)
        with pytest.raises(torch.RaceError):
            x.add_(1)
            torch.cuda.synchronize()


def test_objects_do_not_grow_with_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches are bounded: with small bounds, the number of objects rises and falls but does not grow with shapes."""
    for module, bound in (
        (call, "_LIMIT"),
        (autograd_meta, "_LIMIT"),
        (creation, "_MOST"),
        (structures, "_MOST_SEEN"),
    ):
        monkeypatch.setattr(module, bound, 200)

    def run(start: int) -> int:
        for n in range(start, start + 3000):
            x = torch.empty(2 + n % 61, 2 + n // 61)
            (x + x).sum(0)
            x.view(-1)
        del x
        gc.collect()
        return len(gc.get_objects())

    counts = [run(start) for start in range(0, 24000, 3000)]
    # An object kept for each shape would add 9,000 at least.
    assert min(counts[-3:]) < max(counts[:3]), counts


def test_symbols_compute_as_integers_do() -> None:
    """Random expressions, as a tree's code computes them for other inputs."""
    draw = random.Random(3)
    for _ in range(200):
        tree, steps = (
            PlanTree(),
            [(draw.choice("+-*/%<b"), draw.randrange(9), draw.randint(1, 5)) for _ in range(6)],
        )

        def plan(_: Any, numbers: Any, steps: Any = steps) -> Any:
            values = list(numbers)
            for sign, at, constant in steps:
                a, b = values[at % len(values)], values[(at + 1) % len(values)]
                if sign == "<":
                    values.append(a if a < b else b + constant)
                else:
                    values.append({"+": a + b, "-": a - constant, "*": a * b, "/": a // constant, "%": a % constant,
                                   "b": a.bit_length()}[sign])  # fmt: skip
            return tuple(values)

        for _ in range(12):
            numbers = [draw.randint(0, 30) for _ in range(3)]
            found = tree.find(*numbers)
            assert found is None or found == plan((), numbers)
            if found is None:
                tree.learn(plan, [], numbers)
                assert tree.find(*numbers) == plan((), numbers) or tree.is_full
        assert tree._cases > 0


def test_equal_layouts_of_a_trace_are_one_meta() -> None:
    trace = PlanTrace(ShapeGraph())
    known = torch.ones(2, 3).meta
    with metas.tracing(trace):
        shape: Any = tuple(trace.inputs("m0.shape", (2, 3), least=0))
        assert Meta.contiguous_of(shape, known.dtype, known.device) is Meta.contiguous_of(
            shape, known.dtype, known.device
        )
        assert Meta.contiguous_of((2, 3), known.dtype, known.device) is known


def test_interned_metas_are_one_object_and_few() -> None:
    device = torch.device("cpu")
    kept = {n: Meta.contiguous_of((n, 7), torch.float32, device) for n in range(0, 9000, 3)}
    for n in range(9000):
        meta = Meta.contiguous_of((n, 7), torch.float32, device)
        assert meta is kept.get(n, meta) is Meta.of((n, 7), (7, 1), torch.float32, device)
    assert len(metas._interned) < 4 * len(kept)


def test_known_calls_tell_equal_operands_from_others() -> None:
    for n in range(2, 40):
        x, row = torch.ones(n, 3), torch.ones(1, 3)
        assert (x + x).tolist() == [[2.0] * 3] * n
        assert (x + row).tolist() == [[2.0] * 3] * n
        assert (row + x).shape == x.shape
        assert x.transpose(0, 1).shape == x.transpose(-1, -2).shape == (3, n)
