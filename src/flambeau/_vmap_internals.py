"""torch._vmap_internals: the former place of `vmap`, which libraries import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.func.batching import vmap


def _vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, allow_none_pass_through: bool = False
) -> Callable[..., Any]:
    """Return `torch.vmap(func, in_dims, out_dims)`.

    Args:
        func: The function.
        in_dims: The dimension of each argument that is mapped.
        out_dims: The dimension of each result that is mapped.
        allow_none_pass_through: Not supported.

    Raises:
        NotImplementedError: If `allow_none_pass_through` is True.
    """
    if allow_none_pass_through:
        raise NotImplementedError(
            "_vmap(allow_none_pass_through=True): results of a mapped function are tensors here; return zeros for None"
        )
    return vmap(func, in_dims, out_dims)


explain_absent_names(globals(), "torch._vmap_internals")
