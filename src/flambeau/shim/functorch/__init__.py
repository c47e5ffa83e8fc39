"""PyTorch's package functorch, which shows the functions of `torch.func` and their former names."""

from flambeau.core.public_names import explain_absent_names
from flambeau.func import functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from flambeau.func.functional_modules import (
    FunctionalModule,
    FunctionalModuleWithBuffers,
    make_functional,
    make_functional_with_buffers,
)
from flambeau.fx.experimental.proxy_tensor import make_fx
from flambeau.version import __version__

__all__ = [
    "FunctionalModule", "FunctionalModuleWithBuffers", "__version__", "functionalize", "grad", "grad_and_value",
    "hessian", "jacfwd", "jacrev", "jvp", "make_functional", "make_functional_with_buffers", "make_fx", "vjp", "vmap",
]  # fmt: skip

explain_absent_names(globals(), "functorch")
