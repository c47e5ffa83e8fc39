"""What stands for an int, a size, a dimension or a number: as PyTorch's argument parser decides by the parameter's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau


class Whole:
    def __index__(self) -> int:
        return 1


VALUES: dict[str, Callable[[Any], Any]] = {
    "array without dimensions": lambda module: np.array(1),
    "array of one": lambda module: np.array([1]),
    "NumPy's int": lambda module: np.int64(1),
    "NumPy's bool": lambda module: np.bool_(True),
    "bool": lambda module: True,
    "float": lambda module: 1.0,
    "__index__": lambda module: Whole(),
    "tensor without dimensions": lambda module: module.tensor(1),
    "tensor of one": lambda module: module.tensor([1]),
    "tensor of uint8": lambda module: module.tensor(1, dtype=module.uint8),
    "tensor of bool": lambda module: module.tensor(True),
    "tensor of one bool": lambda module: module.tensor([True]),
    "tensor of float": lambda module: module.tensor(1.0),
}
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cumsum dim": lambda m, x, v: m.cumsum(x, v),
    "unsqueeze dim": lambda m, x, v: x.unsqueeze(v),
    "movedim": lambda m, x, v: m.movedim(x, v, 0),
    "fft dim": lambda m, x, v: m.fft.fft(x, None, v),
    "diag": lambda m, x, v: m.diag(x, v),
    "rot90": lambda m, x, v: m.rot90(x, v),
    "hsplit": lambda m, x, v: m.hsplit(x, v),
    "chunk": lambda m, x, v: x.chunk(v),
    "unfold": lambda m, x, v: x.unfold(0, v, 1),
    "one_hot": lambda m, x, v: m.nn.functional.one_hot(m.tensor([0]), v),
    "linspace": lambda m, x, v: m.linspace(0, 1, v),
    "hann_window": lambda m, x, v: m.hann_window(v),
    "tril_indices": lambda m, x, v: m.tril_indices(v, 1),
    "fftfreq": lambda m, x, v: m.fft.fftfreq(v),
    "histc": lambda m, x, v: m.histc(x, v),
    "eye": lambda m, x, v: m.eye(v),
    "randperm": lambda m, x, v: m.randperm(v),
    "fft n": lambda m, x, v: m.fft.fft(x, v),
    "topk": lambda m, x, v: m.topk(x, v),
    "tril": lambda m, x, v: m.tril(x, v),
    "narrow length": lambda m, x, v: m.narrow(x, 0, 0, v),
    "select": lambda m, x, v: x.select(0, v),
    "bincount": lambda m, x, v: m.bincount(m.tensor([1]), minlength=v),
    "randint high": lambda m, x, v: m.randint(v, (2,)),
    "split": lambda m, x, v: x.split(v),
    "ones": lambda m, x, v: m.ones(v),
    "ones tuple": lambda m, x, v: m.ones((v,)),
    "ones second": lambda m, x, v: m.ones((1, v)),
    "new_ones": lambda m, x, v: x.new_ones(v),
    "full": lambda m, x, v: m.full((v,), 1),
    "randint": lambda m, x, v: m.randint(5, (v,)),
    "reshape": lambda m, x, v: x.reshape(6, v),
    "reshape tuple": lambda m, x, v: x.reshape((v, 6)),
    "view": lambda m, x, v: x.view(6, v),
    "expand": lambda m, x, v: x.expand(v, 2, 3),
    "repeat": lambda m, x, v: x.repeat(v, 2),
    "unflatten": lambda m, x, v: x.unflatten(1, (v, 3)),
    "as_strided": lambda m, x, v: x.as_strided((v,), (1,)),
    "pad": lambda m, x, v: m.nn.functional.pad(x, (v, 0)),
    "permute": lambda m, x, v: x.permute(0, v),
    "permute first": lambda m, x, v: x.permute(v, 0),
    "squeeze": lambda m, x, v: x.squeeze(v),
    "adaptive pool": lambda m, x, v: m.nn.functional.adaptive_avg_pool1d(x, v),
    "alpha": lambda m, x, v: m.add(x, x, alpha=v),
    "correction": lambda m, x, v: m.std(x, 0, correction=v),
    "keepdim": lambda m, x, v: m.sum(x, 0, v),
}  # fmt: skip


def outcome(module: Any, call: Callable[[Any, Any, Any], Any], value: Callable[[Any], Any]) -> str:
    """Return the shapes of the results, or the type of the error."""
    try:
        result = call(module, module.ones(2, 3), value(module))
    except (TypeError, RuntimeError) as error:
        if "PyList_Check" in str(error):  # PyTorch's parser let it pass, and did not know what to do with it
            return "TypeError"
        return type(error).__name__
    return str([tuple(t.shape) for t in (result if isinstance(result, tuple) else [result])])


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "cumsum", "cumprod", "prod", "sum", "mean", "nanmean", "norm"]
)
@pytest.mark.parametrize("kind", [float, complex, int, bool])
def test_a_type_of_python_is_a_dtype(name: str, kind: type) -> None:
    outcomes = []
    for module in (torch, flambeau):
        dim = (0,) if "softmax" in name or "cum" in name else ()
        try:
            outcomes.append(repr(getattr(module, name)(module.ones(2, 3), *dim, dtype=kind).dtype))
        except (RuntimeError, NotImplementedError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1] or name == "nanmean"  # of complex numbers, as on CUDA


@pytest.mark.parametrize("name", CALLS)
def test_what_stands_for_an_int_is_pytorchs(name: str) -> None:
    for form, value in VALUES.items():
        theirs, ours = (outcome(module, CALLS[name], value) for module in (torch, flambeau))
        if (name, form) == ("adaptive pool", "array of one"):  # a sequence, of what is not an int
            theirs = "TypeError"
        assert ours == theirs, form
