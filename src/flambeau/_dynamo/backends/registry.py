"""torch._dynamo.backends.registry: the backends that `torch.compile` accepts by name."""

from __future__ import annotations

import functools

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.compile_options import (
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    set_default_backend,
)

__all__ = [
    "get_default_backend", "list_backends", "lookup_backend", "register_backend", "register_debug_backend",
    "register_experimental_backend", "set_default_backend",
]  # fmt: skip

register_debug_backend = functools.partial(register_backend, tags=("debug",))
register_experimental_backend = functools.partial(register_backend, tags=("experimental",))

explain_absent_names(globals(), "torch._dynamo.backends.registry")
