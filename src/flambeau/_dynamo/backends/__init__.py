"""torch._dynamo.backends: the table of compilers, which Flambeau does not call."""

from flambeau._dynamo.backends import registry
from flambeau.core.names import lacking

__getattr__ = lacking("torch._dynamo.backends")
