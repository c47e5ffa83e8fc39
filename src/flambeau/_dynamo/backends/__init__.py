"""torch._dynamo.backends: the table of compilers, which Flambeau does not call."""

from flambeau._dynamo.backends import registry
from flambeau.core.public_names import explain_absent_names

explain_absent_names(globals(), "torch._dynamo.backends")
