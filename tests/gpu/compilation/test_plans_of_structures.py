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
from flambeau.driver.cuda.libraries.cublaslt import CublasLt, Gemm, Matrix, size_class
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


def test_products_of_about_one_size_share_the_choice_of_an_algorithm() -> None:
    """Compare the alignments, and sizes that may differ by an eighth, of drawn products and their classes."""
    draw = random.Random(3)

    def matrix(rows: int, columns: int) -> Matrix:
        ld = rows + draw.choice((0, 0, 1, 8, 24))
        return Matrix(rows, columns, ld, draw.choice((0, ld * columns)), draw.random() < 0.5)

    for _ in range(400):
        m, n, k = (draw.randint(1, draw.choice((8, 100, 5000))) for _ in range(3))
        d = matrix(m, n)
        gemm = Gemm(float32, float32, draw.randint(1, 70), matrix(m, k), matrix(k, n), d, d)
        alike = size_class(gemm)
        assert alike.c is alike.d
        for x, y in zip(gemm[3:7], alike[3:7], strict=True):
            assert x.rows <= y.rows <= max(x.rows * 9 / 8, 16) and x.columns <= y.columns <= max(
                x.columns * 9 / 8, 16
            )
            assert y.rows <= y.ld and x.transposed is y.transposed
            assert min(x.ld & -x.ld, 16) == min(y.ld & -y.ld, 16)
            assert (x.batch_stride == 0) is (y.batch_stride == 0)
    assert (
        len({size_class(gemm._replace(a=matrix(n, 8), batch=1)).a.rows for n in range(16, 4096)}) == 8 * 8 + 1
    )


def test_products_of_new_lengths_ask_the_library_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    library: Any = object.__new__(CublasLt)
    library._algorithms = {}
    monkeypatch.setattr(CublasLt, "choose", lambda self, gemm, alignment: asked.append(gemm) or len(asked))
    for n in range(1024, 2048):
        x, w, d = Matrix(512, n, 512, 0), Matrix(512, 256, 512, 0, True), Matrix(256, n, 256, 0)
        library.algorithm(Gemm(float32, float32, 1, w, x, d, d), 256)
    assert len(asked) == 9
    monkeypatch.setattr("flambeau.driver.cuda.libraries.cublaslt._MOST", 4)
    for n in range(16, 4096):
        library.algorithm(Gemm(float32, float32, 1, w, Matrix(512, n, 512, 0), d, d), 256)
    assert len(library._algorithms) <= 9
