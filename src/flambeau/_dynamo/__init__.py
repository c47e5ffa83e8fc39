"""torch._dynamo: the names of PyTorch's compiler that libraries use. Flambeau runs compiled functions eagerly."""

from __future__ import annotations

from flambeau._dynamo import backends, config, decorators, eval_frame, exc, external_utils, utils
from flambeau._dynamo.decorators import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    dont_skip_tracing,
    error_on_graph_break,
    forbid_in_graph,
    graph_break,
    is_dynamo_disable_recursive,
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
    nonstrict_trace,
    override_cudagraphs,
    patch_dynamo_config,
    reset,
    run,
    set_stance,
    skip_frame,
    step_unsupported,
    substitute_in_graph,
)
from flambeau._dynamo.eval_frame import (
    OptimizedModule,
    explain,
    export,
    is_dynamo_supported,
    is_inductor_supported,
    optimize,
    optimize_assert,
)
from flambeau._dynamo.external_utils import is_compiling
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.nn.compile_options import list_backends, lookup_backend, register_backend

__all__ = [
    "OptimizedModule", "allow_in_graph", "assume_constant_result", "config", "disable", "disallow_in_graph",
    "dont_skip_tracing", "error_on_graph_break", "explain", "export", "forbid_in_graph", "graph_break", "is_compiling",
    "is_dynamo_disable_recursive", "list_backends", "lookup_backend", "mark_dynamic", "mark_static",
    "mark_static_address", "mark_unbacked", "maybe_mark_dynamic", "nonstrict_trace", "optimize", "optimize_assert",
    "override_cudagraphs", "patch_dynamo_config", "register_backend", "reset", "run", "set_stance", "skip_frame",
    "step_unsupported", "substitute_in_graph",
]  # fmt: skip

explain_absent_names(globals(), "torch._dynamo")
publish(globals())
