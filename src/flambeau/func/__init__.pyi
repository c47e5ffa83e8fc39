# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.func."""


from flambeau.tensor.tensor import Tensor
def debug_unwrap(tensor: Tensor, *, recurse: bool=...) -> Tensor:
    ...
from flambeau.tensor.tensor import Tensor as Tensor
from flambeau.func import batching as batching
from flambeau.func import function_gradients as function_gradients
from flambeau.func.modules import functional_call as functional_call
from flambeau.func.modules import functionalize as functionalize
from flambeau.func.function_gradients import grad as grad
from flambeau.func.function_gradients import grad_and_value as grad_and_value
from flambeau.func.jacobians import hessian as hessian
from flambeau.func.jacobians import jacfwd as jacfwd
from flambeau.func import jacobians as jacobians
from flambeau.func.jacobians import jacrev as jacrev
from flambeau.func.jacobians import jvp as jvp
from flambeau.func.jacobians import linearize as linearize
from flambeau.func import modules as modules
from flambeau.func.rearrangement import rearrange as rearrange
from flambeau.func import rearrangement as rearrangement
from flambeau.func.modules import replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_
from flambeau.func.modules import stack_module_state as stack_module_state
from flambeau.func.jacobians import vjp as vjp
from flambeau.func.batching import vmap as vmap

