"""docs/operators.md is what the operator table and the public names say."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from flambeau.ops.op import table
from flambeau.tensor.arguments import public
from tools.pages import operator_page

ROOT = Path(__file__).parents[2]
NAMES = ROOT / "tests" / "goldens" / "torch_names.txt"
WRITE = "python -m tools.pages.operator_page tests/goldens/torch_names.txt > docs/operators.md"


@pytest.fixture(scope="module")
def page():
    return operator_page.page(NAMES.read_text().split())


def test_the_committed_page_is_the_generated_one(page):
    assert (ROOT / "docs" / "operators.md").read_text() == page, f"write it anew: {WRITE}"


def test_every_record_and_every_function_is_on_the_page(page):
    functions = [
        name for name, value in public.functions.items() if inspect.isfunction(value) and name[0] != "_"
    ]
    assert len(functions) > 300
    for name in [*table, *functions]:
        assert f"`{name}`" in page or f"`{name.removesuffix('_')}`" in page, name


def test_every_difference_is_of_a_name_that_exists():
    assert set(operator_page.DIFFERENCES) <= set(public.functions)


def test_what_is_missing_is_missing(page):
    missing = page.split("## Missing names")[1]
    assert "`torch.thread_safe_generator`" in missing
    assert "`torch.add`" not in missing


def test_what_is_differentiable_is_said():
    assert operator_page.differentiable(table["mul"]) == "yes"
    assert operator_page.differentiable(table["argmax"]) == "no"
    assert operator_page.differentiable(table["geqrf"]) == "refused"


def test_dtypes_are_written_by_kind():
    assert operator_page.dtypes_of(table["mul"]) == "b i f c w 8"
    assert operator_page.dtypes_of(table["hypot"]) == "f"
    assert operator_page.dtypes_of(table["polar"]) == "(float32 float64)"
