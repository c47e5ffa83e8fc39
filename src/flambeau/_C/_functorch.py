"""torch._C._functorch: questions of libraries about tensors of `torch.func`.

`torch.vmap` calls its function for one sample after another, so no tensor is batched or wrapped.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

_ADVICE = "torch.vmap calls its function for one sample after another, so there are no batched tensors."
_ABSENT = (
    "_add_batch_dim", "_remove_batch_dim", "_unwrap_batched", "_unwrap_for_grad", "_vmap_decrement_nesting",
    "_vmap_increment_nesting", "_wrap_for_grad",
)  # fmt: skip


def is_batchedtensor(tensor: Any) -> bool:
    """Return False: no tensor is batched."""
    return False


def is_legacy_batchedtensor(tensor: Any) -> bool:
    """Return False: no tensor is batched."""
    return False


def is_gradtrackingtensor(tensor: Any) -> bool:
    """Return False: no tensor is wrapped; the autograd graph belongs to tensors themselves."""
    return False


def is_functorch_wrapped_tensor(tensor: Any) -> bool:
    """Return False: no tensor is wrapped."""
    return False


def is_functionaltensor(tensor: Any) -> bool:
    """Return False: no tensor is wrapped."""
    return False


def get_unwrapped(tensor: Any) -> Any:
    """Return the tensor: it is not wrapped."""
    return tensor


def maybe_get_level(tensor: Any) -> int:
    """Return -1: the tensor has no level."""
    return -1


def maybe_current_level() -> int | None:
    """Return None, because no transform wraps tensors."""
    return None


globals().update({name: absent_function("torch._C._functorch", name, _ADVICE) for name in _ABSENT})
explain_absent_names(globals(), "torch._C._functorch")
