"""torch._functorch.vmap: the parts of PyTorch's `vmap`, which libraries import and replace by their own.

`torch.vmap` does not use them; they raise when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.tensor import Tensor as Tensor
from flambeau.utils._pytree import tree_flatten as tree_flatten
from flambeau.utils._pytree import tree_unflatten as tree_unflatten


def _get_name(func: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return str(getattr(func, "__name__", None) or repr(func))


for _name in (
    "_add_batch_dim", "_broadcast_to_and_flatten", "_create_batched_inputs", "_maybe_remove_batch_dim",
    "_process_batched_inputs", "_unwrap_batched",
):  # fmt: skip
    globals()[_name] = absent_function(
        "torch._functorch.vmap",
        _name,
        "Call torch.vmap with a function of tensors: there are no batched tensors.",
    )

explain_absent_names(globals(), "torch._functorch.vmap")
