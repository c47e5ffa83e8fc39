"""`torch.func`: modules as functions of their parameters, and gradients of functions. There is no vmap."""

from flambeau.core.names import lacking, publish
from flambeau.func.gradients import grad, grad_and_value
from flambeau.func.modules import functional_call

__all__ = ["functional_call", "grad", "grad_and_value"]

publish(globals())
__getattr__ = lacking("torch.func")
