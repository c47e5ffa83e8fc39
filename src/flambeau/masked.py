"""torch.masked: tensors with masks. The names can be imported; using one raises and says what to do."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "MaskedTensor",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "as_masked_tensor",
    "cumprod",
    "cumsum",
    "is_masked_tensor",
    "log_softmax",
    "logaddexp",
    "logsumexp",
    "masked_tensor",
    "mean",
    "median",
    "norm",
    "normalize",
    "prod",
    "softmax",
    "softmin",
    "std",
    "sum",
    "var",
]

_ADVICE = "Use torch.where, Tensor.masked_fill or functions of torch.nn.functional that take a mask."

MaskedTensor = absent_class("torch.masked", "MaskedTensor", _ADVICE)
amax = absent_function("torch.masked", "amax", _ADVICE)
amin = absent_function("torch.masked", "amin", _ADVICE)
argmax = absent_function("torch.masked", "argmax", _ADVICE)
argmin = absent_function("torch.masked", "argmin", _ADVICE)
as_masked_tensor = absent_function("torch.masked", "as_masked_tensor", _ADVICE)
cumprod = absent_function("torch.masked", "cumprod", _ADVICE)
cumsum = absent_function("torch.masked", "cumsum", _ADVICE)
log_softmax = absent_function("torch.masked", "log_softmax", _ADVICE)
logaddexp = absent_function("torch.masked", "logaddexp", _ADVICE)
logsumexp = absent_function("torch.masked", "logsumexp", _ADVICE)
masked_tensor = absent_function("torch.masked", "masked_tensor", _ADVICE)
mean = absent_function("torch.masked", "mean", _ADVICE)
median = absent_function("torch.masked", "median", _ADVICE)
norm = absent_function("torch.masked", "norm", _ADVICE)
normalize = absent_function("torch.masked", "normalize", _ADVICE)
prod = absent_function("torch.masked", "prod", _ADVICE)
softmax = absent_function("torch.masked", "softmax", _ADVICE)
softmin = absent_function("torch.masked", "softmin", _ADVICE)
std = absent_function("torch.masked", "std", _ADVICE)
sum = absent_function("torch.masked", "sum", _ADVICE)
var = absent_function("torch.masked", "var", _ADVICE)


def is_masked_tensor(obj: object, /) -> bool:
    """Return False, because there are no masked tensors."""
    return False


explain_absent_names(globals(), "torch.masked")
