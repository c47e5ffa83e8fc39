"""Combination of samples to batches: `default_collate`, `default_convert`, and `collate` with the program's rules."""

from __future__ import annotations

import collections
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import float64
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.exchange.interop import as_tensor
from flambeau.tensor.tensor import Tensor

Rules = dict[Any, Callable[..., Any]]
"""What collates samples of a type, or of one of several: `rule(batch, *, collate_fn_map)`."""

_NO_NUMBERS = re.compile(r"[SaUO]")  # kinds of arrays that contain no numbers
_EXPECTED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def default_collate(batch: Any) -> Any:
    """Combine a list of samples to one batch: stack tensors, arrays and numbers, and process containers member by
    member.

    Mappings and named tuples keep their type; tuples and other sequences become lists; strings stay a list.

    Raises:
        TypeError: If a sample has another type.
        RuntimeError: If sequences have different lengths.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: Any, *, collate_fn_map: Rules | None = None) -> Any:
    """Combine a list of samples like `default_collate`, with functions for types. An exact type precedes a base
    class.
    """
    sample = batch[0]
    kind = type(sample)
    rule = _rule_for(kind, collate_fn_map)
    if rule is not None:
        return rule(batch, collate_fn_map=collate_fn_map)
    if isinstance(sample, Mapping):
        return _collated_mapping(batch, sample, collate_fn_map)
    if is_named_tuple(sample):
        return kind(*(collate(part, collate_fn_map=collate_fn_map) for part in zip(*batch, strict=False)))
    if isinstance(sample, Sequence):
        return _collated_sequence(batch, sample, collate_fn_map)
    raise TypeError(_EXPECTED.format(kind))


def _rule_for(kind: type, rules: Rules | None) -> Callable[..., Any] | None:
    if not rules:
        return None
    if kind in rules:
        return rules[kind]
    return next((rule for base, rule in rules.items() if issubclass(kind, base)), None)


def _collated_mapping(batch: Any, sample: Any, rules: Rules | None) -> Any:
    collated = {key: collate([one[key] for one in batch], collate_fn_map=rules) for key in sample}
    return like_mapping(sample, collated)


def _collated_sequence(batch: Any, sample: Any, rules: Rules | None) -> Any:
    if any(len(one) != len(sample) for one in batch):
        raise RuntimeError("each element in list of batch should be of equal size")
    columns = [collate(part, collate_fn_map=rules) for part in zip(*batch, strict=True)]
    return columns if isinstance(sample, tuple) else like_sequence(sample, columns)


# -- containers like another ------------------------------------------------------------------------------


def like_mapping(like: Any, values: dict[Any, Any]) -> Any:
    """Return a mapping of the type of `like` with its other attributes; a plain dict if that is not possible."""
    try:
        if isinstance(like, collections.abc.MutableMapping):
            made = copy.copy(like)
            made.update(values)
            return made
        return type(like)(values)
    except TypeError:
        return values


def like_sequence(like: Any, values: list[Any]) -> Any:
    """Return a sequence of the type of `like`; a list if that type cannot be created from items."""
    try:
        if isinstance(like, collections.abc.MutableSequence):
            made = copy.copy(like)
            for i, value in enumerate(values):
                made[i] = value
            return made
        return type(like)(values)
    except TypeError:
        return values


def is_named_tuple(value: Any) -> bool:
    """Return True if a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


# -- rules ------------------------------------------------------------------------------------------------


def collate_tensor_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Tensor:
    """Return tensors stacked along a new first dimension."""
    found: Tensor = functions["stack"](batch, 0)  # the public one, which subclasses override
    return found


def collate_numpy_array_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Any:
    """Return arrays as tensors, stacked."""
    sample = batch[0]
    if _NO_NUMBERS.search(sample.dtype.str) is not None:
        raise TypeError(_EXPECTED.format(sample.dtype))
    return collate([as_tensor(one) for one in batch], collate_fn_map=collate_fn_map)


def collate_numpy_scalar_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Tensor:
    """Return NumPy's numbers as a tensor of their dtype."""
    return as_tensor(batch)


def collate_float_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Tensor:
    """Return floats as a tensor of float64."""
    return tensor(batch, dtype=float64)


def collate_int_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Tensor:
    """Return ints (and bools) as a tensor."""
    return tensor(batch)


def collate_str_fn(batch: Any, *, collate_fn_map: Rules | None = None) -> Any:
    """Return strings as they are."""
    return batch


default_collate_fn_map: Rules = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}


# -- samples alone ----------------------------------------------------------------------------------------


def default_convert(data: Any) -> Any:
    """Return one sample with its arrays and NumPy numbers converted to tensors; other values unchanged."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        if isinstance(data, np.ndarray) and _NO_NUMBERS.search(data.dtype.str) is not None:
            return data
        return as_tensor(data)
    if isinstance(data, Mapping):
        return like_mapping(data, {key: default_convert(value) for key, value in data.items()})
    if is_named_tuple(data):
        return type(data)(*map(default_convert, data))
    if isinstance(data, tuple):
        return [default_convert(value) for value in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return like_sequence(data, [default_convert(value) for value in data])
    return data
