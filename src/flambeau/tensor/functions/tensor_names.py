"""Names of tensors that PyTorch's tests and libraries use: aliases, constants, and functions that PyTorch removed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import raising_function
from flambeau.tape.autograd_node import Leaf
from flambeau.tensor.arguments.public import alias, both, functions, method
from flambeau.tensor.autograd.autograd_meta import edge_of, node_of
from flambeau.tensor.tensor import Tensor


def _property(name: str, read: Any) -> None:
    there = read if isinstance(read, property) else property(read, doc=read.__doc__)
    alias(name, there, as_function=False)  # type: ignore[arg-type]


# -- loading ----------------------------------------------------------------------------------------------


@method
def module_load(self: Tensor, other: Tensor, assign: bool = False) -> Tensor:
    """Return the object that replaces this parameter or buffer when `load_state_dict` swaps tensors.

    Args:
        other: The value in the state dictionary. A subclass may define another conversion of it.
        assign: True if `other` itself is used; otherwise its values are copied.

    Returns:
        A new tensor without history.
    """
    return other.detach() if assign else self.copy_(other).detach()


# -- gradients and hooks ----------------------------------------------------------------------------------

_property("_grad", Tensor.__dict__["grad"])
_property("_grad_fn", Tensor.__dict__["grad_fn"])


def _find_hooks(self: Tensor) -> Any:
    """Return the hooks that `register_hook` added, by their handle's id; None if there are none."""
    edge = edge_of(self) if self.requires_grad else None
    hooks = None if edge is None else edge[0].node_hooks
    return None if hooks is None or edge is None else hooks.tensor_hooks.get(edge[1]) or None


def _find_post_accumulate_hooks(self: Tensor) -> Any:
    """Return the hooks that `register_post_accumulate_grad_hook` added; None if there are none."""
    node = node_of(self)
    hooks = node.node_hooks if isinstance(node, Leaf) else None
    return None if hooks is None else hooks.post_accumulate or None


_property("_backward_hooks", _find_hooks)
_property("_post_accumulate_grad_hooks", _find_post_accumulate_hooks)


# -- aliases and constants --------------------------------------------------------------------------------

for _name, _original in {
    "_typed_storage": "storage", "_lazy_clone": "clone", "_conj": "conj", "const_data_ptr": "data_ptr",
    "_reduce_ex_internal": "__reduce_ex__", "__nonzero__": "__bool__", "__long__": "__int__", "__div__": "__truediv__",
    "__idiv__": "__itruediv__", "_is_all_true": "all", "_is_any_true": "any",
}.items():  # fmt: skip
    alias(_name, getattr(Tensor, _original), as_function=False)

_property("name", lambda self: None)
_property("_cdata", id)
_property("_has_symbolic_sizes_strides", lambda self: False)


def _warn_of_volatile(self: Tensor) -> bool:
    """Return False: `torch.no_grad()` has replaced it."""
    warn_program("volatile was removed (Variable.volatile is always False)", UserWarning)
    return False


_property("volatile", _warn_of_volatile)


@both
def is_distributed(input: Tensor) -> bool:
    """Return False: no tensor is spread over processes."""
    return False


@both
def _is_zerotensor(input: Tensor) -> bool:
    """Return False: gradients that are zero everywhere are None here, or tensors with memory."""
    return False


@both
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Return True if both tensors have the same shape."""
    return input.meta.shape == other.meta.shape


@both
def dequantize(input: Tensor) -> Tensor:
    """Return the tensor as float32: no tensor is quantized here."""
    return input.to(float32)


@method
def xpu(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> NoReturn:
    """Raise AssertionError, as builds of PyTorch without Intel GPUs do."""
    raise AssertionError("Torch not compiled with XPU enabled")


@method
def resize(self: Tensor, *sizes: Any) -> Tensor:
    """Return a tensor with the same elements in another shape. Deprecated: use `reshape`."""
    warn_program("non-inplace resize is deprecated", UserWarning)
    return self.reshape(*sizes)


@method
def resize_as(self: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with the same elements in the shape of `tensor`. Deprecated: use `reshape`."""
    warn_program("non-inplace resize_as is deprecated", UserWarning)
    return self.reshape(tensor.meta.shape)


@method
def _autocast_to_full_precision(self: Tensor, cuda_enabled: bool, cpu_enabled: bool) -> Tensor:
    enabled = cuda_enabled if self.meta.device.type == "cuda" else cpu_enabled
    return self.to(float32) if enabled and self.meta.dtype in (float16, bfloat16) else self


@method
def _autocast_to_reduced_precision(
    self: Tensor, cuda_enabled: bool, cpu_enabled: bool, cuda_dtype: Any, cpu_dtype: Any
) -> Tensor:
    here = self.meta.device.type == "cuda"
    enabled, kind = (cuda_enabled, cuda_dtype) if here else (cpu_enabled, cpu_dtype)
    return self.to(kind) if enabled and self.meta.dtype is float32 else self


# -- what PyTorch removed, and what needs other devices -----------------------------------------------------


def _raising(name: str, error: type[Exception], text: str) -> Callable[..., NoReturn]:
    return raising_function(__name__, name, text, partial(error, text))


_REMOVED = "This function was deprecated since version 1.9 and is now removed."
for _name, _text in {
    "eig": "Use torch.linalg.eig, whose results are complex, or torch.linalg.eigvals.",
    "symeig": "Use torch.linalg.eigh or torch.linalg.eigvalsh; upper=True is UPLO='U'.",
    "lstsq": "Use torch.linalg.lstsq(A, B), whose arguments are in the other order.",
    "solve": "Use torch.linalg.solve(A, B), whose arguments are in the other order.",
    "matrix_rank": "Use torch.linalg.matrix_rank; symmetric is named hermitian there.",
}.items():
    functions[_name] = _raising(_name, RuntimeError, f"{_REMOVED} {_text}")
    if _name != "matrix_rank":
        setattr(Tensor, _name, functions[_name])

_QUANTIZED = "no tensor is quantized in Flambeau; scale and round it with torch.clamp and torch.round"
for _name, _error, _text in (
    ("reinforce", RuntimeError, "reinforce() was removed. Use torch.distributions instead."),
    ("to_mkldnn", NotSupportedError, "Tensor.to_mkldnn: Flambeau has no oneDNN layout. Use the tensor as it is."),
    ("ipu", RuntimeError, "PyTorch is not linked with support for ipu devices"),
    ("mtia", AssertionError, "Torch not compiled with MTIA enabled"),
    *[
        (name, NotSupportedError, f"Tensor.{name}: {_QUANTIZED}")
        for name in ("int_repr", "q_scale", "q_zero_point", "qscheme", "q_per_channel_axis", "q_per_channel_scales",
                     "q_per_channel_zero_points")
    ],
):  # fmt: skip
    setattr(Tensor, _name, _raising(_name, _error, _text))
