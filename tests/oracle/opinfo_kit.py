"""PyTorch's own samples of operators, and the calls of torch.ops.aten that they make."""

from __future__ import annotations

import random
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch as oracle
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import flambeau as torch


def op_infos() -> list[Any]:
    """Return PyTorch's database of operators with samples of their inputs."""
    if "expecttest" not in sys.modules:  # imported by PyTorch's test utilities, and not used for samples
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings(), patch("torch.backends.disable_global_flags"):  # other tests set flags
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


class CallLog(TorchDispatchMode):
    """A mode that lists PyTorch's calls below autograd: (name, args, kwargs, result), with copies of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = pytree.tree_map(_copy, (args, kwargs))
        result = func(*args, **kwargs)
        self.calls.append((str(func), *before, pytree.tree_map(_copy, result)))
        return result


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, oracle.Tensor) else x


class CannotConvert(Exception):
    """A value of PyTorch's that Flambeau has no counterpart of."""


def convert(x: Any) -> Any:
    """Return a value of PyTorch's as Flambeau's.

    Raises:
        CannotConvert: If there is no counterpart.
    """
    if isinstance(x, oracle.Tensor):
        if x.layout is not oracle.strided or x.is_quantized or x.dtype in (oracle.bfloat16, oracle.complex32):
            raise CannotConvert
        plain = x.detach().resolve_conj().resolve_neg()
        made = torch.empty_strided(tuple(x.shape), plain.stride(), dtype=convert(x.dtype))
        return made.copy_(torch.from_numpy(np.array(plain.contiguous().numpy())))
    if isinstance(x, oracle.dtype | oracle.layout | oracle.memory_format):
        found = getattr(torch, str(x).removeprefix("torch."), None)
        if found is None:
            raise CannotConvert
        return found
    if isinstance(x, oracle.device):
        return torch.device(str(x))
    if isinstance(x, list | tuple):
        return type(x)(convert(each) for each in x) if type(x) in (list, tuple) else tuple(map(convert, x))
    if isinstance(x, dict):
        return {key: convert(value) for key, value in x.items()}
    if x is None or isinstance(x, int | float | complex | bool | str):
        return x
    raise CannotConvert


def samples(
    op: Any, count: int, seed: int, requires_grad: bool = False, dtype: Any = oracle.float32
) -> Iterator[Any]:
    """Yield some of an operator's samples of one dtype."""
    oracle.manual_seed(seed)
    listed = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    random.Random(seed).shuffle(listed)
    yield from listed[:count]
