"""Plans of structures launch what plans made for each shape launch, bit by bit, for every operator with kernels.

Operators, shapes and layouts are drawn at random. A tree whose plan contained a size of another call would differ.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")

from structure_kit import CUDA, Comparison, context, drawn_calls

import flambeau as torch
from flambeau.core.dtype import float16, float32, int64
from flambeau.core.meta import Meta
from flambeau.core.tracing import plan_tree
from flambeau.core.tracing.plan_tree import Build, PlanTree
from flambeau.core.tracing.symbols import pack
from flambeau.ops.op import table
from flambeau.tensor import call

assert torch.optim, "importing optimizers defines their operators"
PARTS = 6


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    only = context()
    monkeypatch.setattr(call.system, "context_of", lambda where: only)


@pytest.mark.parametrize("part", range(PARTS))
def test_trees_plan_as_rules_and_builders_do(part: int) -> None:
    compared = 0
    for at, op in enumerate(table.values()):
        kinds = [kind for kind in (float32, float16, int64) if kind in op.dtypes]
        if at % PARTS != part or not kinds:
            continue
        comparison = Comparison(op)
        draw = random.Random(at)
        compared += sum(_plan_all(comparison, kind, draw) for kind in kinds[:2])
    assert compared > 500


def _plan_all(comparison: Comparison, kind: Any, draw: random.Random) -> int:
    before = comparison.compared
    for operands, params in drawn_calls(comparison.op, kind, draw, 40):
        comparison.plan(operands, params)
    return comparison.compared - before


def test_each_length_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyday calls of which the first size alone varies need few cases."""
    monkeypatch.setattr(plan_tree, "REPORT", True)
    draw = random.Random(7)
    calls: dict[str, Any] = {
        "add": lambda x: ((x, x), ()),
        "relu": lambda x: ((x,), ()),
        "softmax": lambda x: ((x,), (-1, None)),
        "cat": lambda x: ((x, x), (0,)),
    }
    for name, operands_of in calls.items():
        comparison = Comparison(table[name])
        for _ in range(200):
            x = Meta.contiguous_of((draw.randint(2, 4000), 64), float32, CUDA)
            comparison.plan(*operands_of(x))
        assert comparison.compared > 170, name


def test_a_size_in_the_result_becomes_a_guard() -> None:
    tree, metas = PlanTree(), [Meta.contiguous_of((n, 8), float32, CUDA) for n in (5, 6)]

    def plan(metas: Any, numbers: Any) -> Build:
        return Build(
            lambda text, packed: (text, packed), f"int n = {metas[0].shape[0]};", pack("<q", metas[0].numel)
        )

    tree.learn(plan, metas[:1], ())
    assert tree.find(metas[0]) == ("int n = 5;", pack("<q", 40))
    assert tree.find(metas[1]) is None
    tree.learn(plan, metas[1:], ())
    assert [tree.find(meta)[0] for meta in metas] == ["int n = 5;", "int n = 6;"]
