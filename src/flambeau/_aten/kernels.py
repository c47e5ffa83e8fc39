"""Which function computes an operator of torch.ops.aten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flambeau import fft, linalg, special
from flambeau._aten.private import KERNELS
from flambeau._library.schema import FunctionSchema
from flambeau.nn import functional
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor

Kernel = Callable[..., Any]

_REDUCTIONS = ("none", "mean", "sum")
_SEQUENCES = frozenset(
    {
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "block_diag",
        "broadcast_tensors",
        "cartesian_prod",
        "meshgrid",
    }
)  # functions of tensors one by one, where the operator takes a list
_MODULES = {"linalg_": linalg, "fft_": fft, "special_": special}


def kernel_of(schema: FunctionSchema) -> Kernel:
    """Return the function that computes an overload, with the outputs of its `out` arguments as `out=`.

    Raises:
        NotImplementedError: If there is none.
    """
    name = schema.name.partition("::")[2]
    full = f"{name}.{schema.overload_name}" if schema.overload_name else name
    for found in _candidates(name, full):
        if name in _SEQUENCES:
            return lambda tensors, **kwargs: found(*tensors, **kwargs)
        return _with_reduction(found, schema) if _takes_reduction_word(found, schema) else found
    raise NotImplementedError(f"torch.ops.aten.{full}: Flambeau has no function for it")


def has_kernel(schema: FunctionSchema) -> bool:
    """Return True if Flambeau has a function that computes an overload."""
    name = schema.name.partition("::")[2]
    return any(True for _ in _candidates(name, f"{name}.{schema.overload_name}"))


def _candidates(name: str, full: str) -> Iterator[Kernel]:
    for key in (full, name):
        if key in KERNELS:
            yield KERNELS[key]
    if name.endswith("_") and not name.endswith("__") and name in vars(Tensor):
        yield vars(Tensor)[name]
    for prefix, module in _MODULES.items():
        if name.startswith(prefix) and hasattr(module, name.removeprefix(prefix)):
            yield getattr(module, name.removeprefix(prefix))
    for namespace in (functions, vars(functional), vars(Tensor)):
        found = namespace.get(name)
        if callable(found):
            yield found


def _takes_reduction_word(function: Kernel, schema: FunctionSchema) -> bool:
    """Return True if the operator's number for a reduction is a word in the function."""
    has_reduction = any(a.name == "reduction" for a in schema.arguments)
    return has_reduction and function is getattr(functional, function.__name__, None)


def _with_reduction(function: Kernel, schema: FunctionSchema) -> Kernel:
    """Return a loss function that takes the number of a reduction, as in `schema`, and passes its name on."""
    names = [a.name for a in schema.arguments]

    def loss(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        given["reduction"] = _REDUCTIONS[given.pop("reduction", 1)]
        return function(given.pop("self"), given.pop("target"), **given)

    return loss
