"""`torch.func`: modules as functions of their parameters, gradients and Jacobians of functions, vmap."""

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.func.batching import vmap
from flambeau.func.function_gradients import grad, grad_and_value
from flambeau.func.jacobians import hessian, jacfwd, jacrev, jvp, linearize, vjp
from flambeau.func.modules import (
    functional_call,
    functionalize,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from flambeau.func.rearrangement import rearrange
from flambeau.tensor.tensor import Tensor

__all__ = [
    "debug_unwrap", "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp",
    "linearize", "rearrange", "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap",
]  # fmt: skip


def debug_unwrap(tensor: Tensor, *, recurse: bool = True) -> Tensor:
    """Return the tensor that a transform wraps. Flambeau's transforms wrap none, so this is the tensor itself."""
    return tensor


publish(globals())
explain_absent_names(globals(), "torch.func")
