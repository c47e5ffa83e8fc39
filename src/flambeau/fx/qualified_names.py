"""PyTorch's names of functions, which listings of graphs and generated code contain.

# Note [Names of functions in graphs]
Problem: PyTorch prints a function by the place where it is defined, such as `torch._C._nn.linear` for
`torch.nn.functional.linear`. Flambeau defines its functions elsewhere.
Rule: `name_function` returns PyTorch's name for each public function of `torch`, `torch.nn.functional`, `torch.fft`,
`torch.linalg` and `torch.special`. The modules of these names exist (`torch._C._nn`, `torch.functional`), so that
generated code finds the function.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any

import flambeau
from flambeau import fft, functional, linalg, special
from flambeau.core.public_names import publish
from flambeau.nn import functional as nn_functional

__all__ = ["name_function", "public_name", "qualify_type"]

# Functions of torch.nn.functional that PyTorch defines in C++, by the module that holds them.
IN_TORCH = {
    "adaptive_avg_pool1d", "avg_pool1d", "bilinear", "celu_", "channel_shuffle", "conv1d", "conv2d", "conv3d",
    "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_similarity", "hardshrink",
    "native_channel_shuffle", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "prelu", "relu_",
    "rrelu_", "selu_", "threshold_",
}  # fmt: skip
IN_NN = {
    "avg_pool2d", "avg_pool3d", "elu_", "gelu", "hardtanh_", "leaky_relu_", "linear", "logsigmoid", "one_hot",
    "scaled_dot_product_attention", "softplus", "softshrink",
}  # fmt: skip
_MOVED = {"torch.functional.istft": "torch.istft"}
RENAMED = {"logsigmoid": "log_sigmoid"}


class _QualifiedNames:
    """PyTorch's qualified name of each public function, built at first use."""

    def __init__(self) -> None:
        self.qualified: dict[int, str] = {}

    def find(self, function: Any) -> str | None:
        if not self.qualified:
            self._build()
        return self.qualified.get(id(function))

    def _build(self) -> None:
        for prefix, space, mangle in (
            ("torch.nn.functional.", nn_functional, _name_functional),
            ("torch.functional.", functional, str),
            ("torch.", flambeau, str),
            ("torch._C._special.special_", special, str),
            ("torch._C._linalg.linalg_", linalg, str),
            ("torch._C._fft.fft_", fft, str),
        ):
            for name, value in list(vars(space).items()):
                if isinstance(value, FunctionType) and not name.startswith("__") and _is_ours(value):
                    full = mangle(name)
                    full = full if "." in full else prefix + full
                    self.qualified.setdefault(id(value), _MOVED.get(full, full))


def _is_ours(function: FunctionType) -> bool:
    return function.__module__.partition(".")[0] in ("flambeau", "torch")


def _name_functional(name: str) -> str:
    if name in IN_TORCH:
        return f"torch.{name}"
    if name in IN_NN:
        return f"torch._C._nn.{RENAMED.get(name, name)}"
    return "torch.nn.functional._threshold" if name == "threshold" else name


_names = _QualifiedNames()


def public_name(module: str) -> str:
    """Return a module's dotted name with `torch` in place of `flambeau`."""
    root, dot, rest = module.partition(".")
    return f"torch{dot}{rest}" if root == "flambeau" else module


def find_name(function: Any) -> str | None:
    """Return PyTorch's qualified name of a public function, or None for other objects."""
    return _names.find(function)


def name_function(function: Callable[..., Any]) -> str:
    """Return the qualified name by which PyTorch prints a function.

    Raises:
        AttributeError: If the object has no name.
    """
    if getattr(builtins, getattr(function, "__name__", ""), None) is function:
        return f"builtins.{function.__name__}"
    found = _names.find(function)
    if found is not None:
        return found
    name = getattr(function, "__name__", None)
    if name is None:
        raise AttributeError(f"{function!r} has no __name__, so a graph cannot call it")
    module = public_name(getattr(function, "__module__", None) or "torch").replace("_operator", "operator")
    return f"{module}.{name}"


def qualify_type(kind: Any) -> str:
    """Return the text of a type annotation, as listings print it."""
    if isinstance(kind, type) and not hasattr(kind, "__origin__"):
        if kind.__module__ == "builtins":
            return kind.__qualname__
        return f"{public_name(kind.__module__)}.{kind.__qualname__}"
    if kind is ...:
        return "..."
    return repr(kind).replace("flambeau.", "torch.")


publish(globals())
