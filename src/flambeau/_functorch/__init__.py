"""torch._functorch: internals of PyTorch's function transforms that libraries import."""

from flambeau.core.public_names import explain_absent_names

explain_absent_names(globals(), "torch._functorch")
