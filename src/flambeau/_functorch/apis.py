"""torch._functorch.apis: the module in which PyTorch defines these function transforms."""

from flambeau.core.public_names import explain_absent_names
from flambeau.func import grad, grad_and_value, vmap

__all__ = ["grad", "grad_and_value", "vmap"]

explain_absent_names(globals(), "torch._functorch.apis")
