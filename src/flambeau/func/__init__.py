"""`torch.func`: modules as functions of their parameters, gradients and Jacobians of functions, vmap."""

from flambeau.core.names import explain_absent_names, publish
from flambeau.func.batching import vmap
from flambeau.func.gradients import grad, grad_and_value
from flambeau.func.jacobians import hessian, jacfwd, jacrev, jvp, linearize, vjp
from flambeau.func.modules import (
    functional_call,
    functionalize,
    replace_all_batch_norm_modules_,
    stack_module_state,
)

__all__ = [
    "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap",
]  # fmt: skip

publish(globals())
explain_absent_names(globals(), "torch.func")
