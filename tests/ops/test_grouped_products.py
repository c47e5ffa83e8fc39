"""`grouped_mm` and `scaled_mm` against PyTorch's CPU build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, to_torch, torch

import flambeau


def outcome(run: Any, lib: Any) -> Any:
    try:
        return run(lib)
    except (RuntimeError, ValueError) as error:
        return type(error), str(error).split("\n", maxsplit=1)[0]


@given(
    st.sampled_from(["rows", "columns", "both", "groups"]),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_groups_are_multiplied_with_gradients(form: str, sizes: list[int], seed: int) -> None:
    """Sizes count eights, as PyTorch wants strides of 16 bytes; the last row of `ends` is the end of the dimension."""
    ends = np.cumsum(sizes).astype(np.int32) * 8
    total, groups = max(8, int(ends[-1])), len(sizes)
    ends[-1] = total
    shapes = {
        "rows": ((total, 16), (groups, 16, 8)), "columns": ((groups, 16, 8), (8, total)),
        "both": ((16, total), (total, 24)), "groups": ((groups, 16, 8), (groups, 8, 24)),
    }[form]  # fmt: skip
    rng = np.random.default_rng(seed)
    drawn = [torch.from_numpy(rng.integers(-3, 4, shape)).to(torch.float32) for shape in shapes]
    found = []
    for lib in (flambeau, torch):
        a, b = [(x if lib is torch else from_torch(x)).requires_grad_() for x in (x.clone() for x in drawn)]
        offs = None if form == "groups" else lib.from_numpy(ends)
        result = lib.nn.functional.grouped_mm(a, b, offs=offs)
        result.backward(lib.ones(*result.shape))
        found.append([result.detach(), a.grad, b.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(to_torch(ours.contiguous()), theirs.contiguous())


def ends(lib: Any, *values: int) -> Any:
    return lib.tensor(values, dtype=lib.int32)


FAULTY = {
    "dtype": lambda lib, o: (o(32, 16, dtype=lib.float64), o(2, 16, 8, dtype=lib.float64), ends(lib, 16, 32)),
    "no offsets": lambda lib, o: (o(32, 16), o(2, 16, 8), None),
    "offsets of three": lambda lib, o: (o(2, 32, 16), o(2, 16, 8), ends(lib, 16, 32)),
    "int64": lambda lib, o: (o(32, 16), o(2, 16, 8), lib.tensor([16, 32])),
    "count": lambda lib, o: (o(32, 16), o(2, 16, 8), ends(lib, 8, 16, 32)),
    "four dimensions": lambda lib, o: (o(2, 2, 32, 16), o(2, 16, 32), None),
    "common dimension": lambda lib, o: (o(2, 32, 16), o(2, 24, 32), None),
    "groups": lambda lib, o: (o(2, 32, 16), o(3, 16, 32), None),
    "alignment": lambda lib, o: (o(3, 5), o(2, 5, 5), ends(lib, 1, 3)),
    "strides": lambda lib, o: (o(1, 1).expand(32, 16), o(2, 16, 8), ends(lib, 16, 32)),
}


@pytest.mark.parametrize("case", FAULTY)
def test_wrong_groups_are_refused_in_pytorchs_words(case: str) -> None:
    def run(lib: Any) -> Any:
        a, b, offs = FAULTY[case](lib, lib.ones)
        lib.nn.functional.grouped_mm(a, b, offs=offs)

    theirs = outcome(run, torch)
    assert theirs is not None and outcome(run, flambeau) == theirs


def test_offsets_beyond_the_rows_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"offs must increase from 0 to at most 32.*\[16, 40\]"):
        flambeau.nn.functional.grouped_mm(
            flambeau.ones(32, 16), flambeau.ones(2, 16, 8), offs=ends(flambeau, 16, 40)
        )


@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
@pytest.mark.parametrize("out", [None, "bfloat16", "float32"])
def test_scaled_products_are_pytorchs(recipe: str, out: str | None) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 32, 64)).astype(np.float32)
    scales = [rng.random((32, 1), np.float32), rng.random((1, 32), np.float32)]
    if recipe == "TensorWise":
        scales = [np.float32([2.0]), np.float32([0.5])]
    found = []
    for lib in (flambeau, torch):
        functional = lib.nn.functional
        a, b = (lib.from_numpy(x).to(lib.float8_e4m3fn) for x in (left, right))
        how = getattr(functional.ScalingType, recipe)
        one, other = map(lib.from_numpy, scales)
        found.append(
            functional.scaled_mm(a, b.t(), one, how, other, [how], output_dtype=out and getattr(lib, out))
        )
    assert repr(found[0].dtype) == repr(found[1].dtype)
    torch.testing.assert_close(
        to_torch(found[0]).float(), found[1].float(), rtol=0.07 if out is None else 1e-2, atol=1e-3
    )


def test_other_scales_say_what_to_pass() -> None:
    functional, kinds = flambeau.nn.functional, flambeau.nn.functional.ScalingType
    a, one = flambeau.ones(16, 16).to(flambeau.float8_e4m3fn), flambeau.ones(1)
    with pytest.raises(flambeau.NotSupportedError, match="BlockWise1x32"):
        functional.scaled_mm(a, a.t(), one, kinds.BlockWise1x32, one, kinds.TensorWise)
    with pytest.raises(ValueError, match="Invalid scaling configuration"):
        functional.scaled_mm(a, a.t(), one, kinds.RowWise, one, kinds.TensorWise)
    with pytest.raises(ValueError, match="scale_a must have 1 Float element"):
        functional.scaled_mm(a, a.t(), flambeau.ones(2), kinds.TensorWise, one, kinds.TensorWise)


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_indices_of_triangles_take_a_layout(name: str) -> None:
    found = [getattr(lib, name)(3, 4, layout=lib.strided, pin_memory=False) for lib in (flambeau, torch)]
    assert found[0].tolist() == found[1].tolist()
    with pytest.raises(flambeau.NotSupportedError, match="sparse_coo"):
        getattr(flambeau, name)(3, 4, layout=flambeau.sparse_coo)
