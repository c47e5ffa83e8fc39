"""torch._prims_common against PyTorch: drawn dtypes, shapes, strides and arguments."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
import torch._prims_common as theirs

import flambeau
import flambeau._prims_common as ours

KINDS = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
]
OF_A_DTYPE = [
    "is_boolean_dtype",
    "is_integer_dtype",
    "is_float_dtype",
    "is_complex_dtype",
    "is_grad_dtype",
    "is_low_precision_dtype",
    "corresponding_real_dtype",
    "corresponding_complex_dtype",
    "get_computation_dtype",
    "dtype_to_type",
    "dtype_or_default",
]
OF_A_TENSOR = [
    "is_contiguous",
    "is_channels_last_contiguous_2d",
    "is_channels_last_contiguous_3d",
    "is_channels_last_contiguous",
    "suggest_memory_format",
]


def describe(value: Any) -> Any:
    """Return a value in a form that both libraries share."""
    if isinstance(value, list | tuple):
        return [describe(each) for each in value]
    return value.__name__ if isinstance(value, type) else str(value)


def outcome(module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return describe(getattr(module, name)(*args, **kwargs))
    except Exception as error:
        return type(error).__name__


def compare(name: str, *args: Any, **kwargs: Any) -> None:
    assert outcome(ours, name, *args, **kwargs) == outcome(theirs, name, *args, **kwargs), (
        name,
        args,
        kwargs,
    )


def test_rules_of_dtypes_equal_pytorchs():
    for kind in KINDS:
        for name in OF_A_DTYPE:
            mine, other = getattr(flambeau, kind), getattr(torch, kind)
            assert outcome(ours, name, mine) == outcome(theirs, name, other), (name, kind)
        for second in KINDS:
            results = [
                (
                    outcome(module, "get_higher_dtype", getattr(lib, kind), getattr(lib, second)),
                    outcome(
                        module,
                        "can_safe_cast_to",
                        cast_to=getattr(lib, kind),
                        cast_from=getattr(lib, second),
                    ),
                )
                for module, lib in ((ours, flambeau), (theirs, torch))
            ]
            assert results[0] == results[1], (kind, second)
    for a in (bool, int, float, complex, str):
        compare("type_to_dtype", a)
        for b in (bool, int, float, complex):
            compare("get_higher_type", a, b)
            compare("is_weakly_lesser_type", a, b)


@pytest.mark.parametrize("seed", range(150))
def test_rules_of_shapes_equal_pytorchs(seed):
    r = random.Random(seed)
    shape = tuple(r.choice([0, 1, 2, 3, 4]) for _ in range(r.randrange(6)))
    other = tuple(r.choice([1, 1, 2, 3]) for _ in range(r.randrange(6)))
    dim, order = r.randrange(-7, 7), list(range(len(shape)))
    r.shuffle(order)
    compare("make_contiguous_strides_for", shape, r.random() < 0.5)
    compare("make_channels_last_strides_for", shape)
    compare("canonicalize_dim", len(shape), dim, r.random() < 0.5)
    for name in ("is_expandable_to", "infer_size_shapes", "same_shape"):
        compare(name, shape, other)
    compare(
        "infer_size", tuple(r.choice([-2, -1, 1, 2, 3, 0]) for _ in range(r.randrange(4))), r.randrange(13)
    )
    dims = [r.randrange(-6, 6) for _ in range(r.randrange(3))]
    compare("reduction_dims", shape, dims)
    compare("compute_reduction_output_shape", shape, [abs(each) for each in dims])
    compare("apply_perm", shape, order)
    compare("invert_perm", order)
    compare("is_valid_permutation", len(shape), [r.randrange(4) for _ in order])
    strides = tuple(r.choice([0, 1, 2, 3, 4, 6, 12]) for _ in shape)
    compare("compute_required_storage_length", shape, strides, r.randrange(3))
    size = 5 + sum(a * b for a, b in zip(shape, strides, strict=True))
    for name in OF_A_TENSOR:
        pairs = [
            (lib.zeros(size).as_strided(shape, strides), lib.zeros(shape).permute(order))
            for lib in (flambeau, torch)
        ]
        for mine, yours in zip(*pairs, strict=True):
            assert outcome(ours, name, mine) == outcome(theirs, name, yours), (name, shape, mine.stride())
    compare("set_correction", *r.choice([(None, None), (True, None), (None, 0.5), (True, 1), (None, "a")]))


@pytest.mark.parametrize("seed", range(60))
def test_promotion_equals_pytorchs(seed):
    r = random.Random(seed)
    args: list[list[Any]] = [[], []]
    for _ in range(r.randrange(1, 4)):
        number, kind, shape = r.choice([True, 2, 2.5, 2j, None]), r.choice(KINDS), r.choice([(), (2,)])
        for each, lib in zip(args, (flambeau, torch), strict=True):
            each.append(number if seed % 3 == 0 else lib.empty(shape, dtype=getattr(lib, kind)))
    for kind in theirs.ELEMENTWISE_TYPE_PROMOTION_KIND:
        rule = ours.ELEMENTWISE_TYPE_PROMOTION_KIND[kind.name]
        assert outcome(ours, "elementwise_dtypes", *args[0], type_promotion_kind=rule) == outcome(
            theirs, "elementwise_dtypes", *args[1], type_promotion_kind=kind
        )
    name = r.choice(KINDS)
    for output in theirs.REDUCTION_OUTPUT_TYPE_KIND:
        tensors = [lib.empty(1, dtype=getattr(lib, name)) for lib in (flambeau, torch)]
        rule = ours.REDUCTION_OUTPUT_TYPE_KIND[output.name]
        assert outcome(ours, "reduction_dtypes", tensors[0], rule) == outcome(
            theirs, "reduction_dtypes", tensors[1], output
        )


def test_check_warns_and_raises_as_pytorch():
    for module in (ours, theirs):
        with pytest.warns(FutureWarning, match="deprecated"), pytest.raises(IndexError, match="text"):
            module.check(False, lambda: "text", IndexError)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert module.check(True, lambda: "text") is None
