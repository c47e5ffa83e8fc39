"""torch._jit_internal: what libraries import from PyTorch's module of this name; see `flambeau.jit`."""

from __future__ import annotations

from typing import Any, Dict, Final, List, Optional, Tuple, Union  # noqa: UP035  # libraries import them from here

from flambeau.core.public_names import explain_absent_names
from flambeau.futures import Future
from flambeau.jit._internal import (
    BroadcastingList1,
    BroadcastingList2,
    BroadcastingList3,
    BroadcastingList4,
    BroadcastingList5,
    BroadcastingList6,
    FunctionModifiers,
    RRef,
    _copy_to_script_wrapper,
    _disable_emit_hooks,
    _drop,
    _IgnoreContextManager,
    _isinstance,
    _overload,
    _overload_method,
    boolean_dispatch,
    export,
    get_torchscript_modifier,
    ignore,
    is_ignored_fn,
    is_scripting,
    unused,
)

explain_absent_names(globals(), "torch._jit_internal")
