"""torch.jit: TorchScript's functions as PyTorch documents them for `PYTORCH_JIT=0`, so that the Python runs.

`script` and `trace` return what they get. Files of TorchScript are neither written nor read. The modules in reading
order: `_script` (script modules), `_trace` (traced modules), and this one (everything else).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.distributed.future import Future
from flambeau.jit._internal import (
    _drop,
    _IgnoreContextManager,
    _isinstance,
    _overload,
    _overload_method,
    export,
    ignore,
    is_scripting,
    unused,
)
from flambeau.jit._script import (
    RecursiveScriptModule,
    ScriptFunction,
    ScriptModule,
    ScriptWarning,
    _unwrap_optional,
    interface,
    script,
    script_method,
)
from flambeau.jit._trace import (
    TopLevelTracedModule,
    TracedModule,
    TracerWarning,
    TracingCheckError,
    _script_if_tracing,
    is_tracing,
    trace,
    trace_module,
)

__all__ = [
    "Attribute", "CompilationUnit", "Error", "Final", "Future", "ScriptFunction", "ScriptModule", "annotate",
    "enable_onednn_fusion", "export", "export_opnames", "fork", "freeze", "ignore", "interface", "is_scripting",
    "is_tracing", "isinstance", "load", "onednn_fusion_enabled", "optimize_for_inference", "save", "script",
    "script_if_tracing", "set_fusion_strategy", "strict_fusion", "trace", "trace_module", "unused", "wait",
]  # fmt: skip

_FUSERS = ("fuser0", "fuser1", "fuser2", "fuser3")
_OFF = "TorchScript is off: `torch.jit.script` and `torch.jit.trace` return the Python module itself"
_fusion_strategy: tuple[tuple[str, int], ...] = (("STATIC", 2), ("DYNAMIC", 10))
_is_onednn_fusion_enabled = False


class Error(Exception):
    """An exception that TorchScript's interpreter raises; Python code raises its own."""


class CompilationUnit:
    """A set of TorchScript functions compiled from source text, which Flambeau does not compile."""

    def __init__(self, lang: str | None = None, _frames_up: int = 0) -> None:
        if lang is not None:
            raise NotSupportedError(f"CompilationUnit: {_OFF}. Write the functions in Python.")


# -- what Python code does with and without TorchScript -----------------------------------------------------------


def annotate(the_type: Any, the_value: Any) -> Any:
    """Return `the_value`; TorchScript would take its type from `the_type`."""
    return the_value


def Attribute(value: Any, type: Any) -> Any:  # noqa: N802
    """Return `value`; TorchScript would take its type from `type`."""
    return value


def isinstance(obj: object, target_type: Any) -> bool:
    """Return True if `obj` is of a type that may name what a container holds, such as `List[int]`.

    Args:
        obj: The object.
        target_type: A type, or a tuple of types of which one must fit.

    Raises:
        RuntimeError: If a container's type does not say what it contains.
    """
    return _isinstance(obj, target_type)


def script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `fn`; a trace would compile it."""
    return _script_if_tracing(fn)


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Call `func` and return a completed `Future` of its result. PyTorch also calls it before returning, except in
    TorchScript.

    Args:
        func: The function or module.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    future: Future[Any] = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Future[Any]) -> Any:
    """Return the result of a `Future` that `fork` returned."""
    return future.wait()


class strict_fusion:
    """A context manager without effect; with TorchScript it asks the compiler to fuse its whole block."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


# -- settings of TorchScript's optimizer, which are kept and have no effect ---------------------------------------


def set_fusion_strategy(strategy: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Store how TorchScript should specialize fused kernels, and return what was stored before.

    Args:
        strategy: Pairs of "STATIC" or "DYNAMIC" and a count of specializations.

    Raises:
        ValueError: If a pair names anything else.
    """
    for kind, _ in strategy:
        if kind not in ("STATIC", "DYNAMIC"):
            raise ValueError(f"FusionBehavior only supported 'STATIC' or 'DYNAMIC', got: {kind}")
    global _fusion_strategy
    before, _fusion_strategy = _fusion_strategy, tuple(strategy)
    return list(before)


def enable_onednn_fusion(enabled: bool) -> None:
    """Store whether TorchScript should fuse by oneDNN."""
    global _is_onednn_fusion_enabled
    _is_onednn_fusion_enabled = bool(enabled)


def onednn_fusion_enabled() -> bool:
    """Return what `enable_onednn_fusion` stored."""
    return _is_onednn_fusion_enabled


@contextmanager
def fuser(name: str) -> Iterator[None]:
    """Run a block in which TorchScript would use the fuser `name`.

    Raises:
        Exception: If `name` is not one of "fuser0" to "fuser3".
    """
    if name not in _FUSERS:
        raise Exception(f"unrecognized fuser option (name: {name})")
    yield


@contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Run a block in which TorchScript would or would not optimize its graphs."""
    yield


# -- what needs a compiled module ---------------------------------------------------------------------------------


def freeze(mod: Any, preserved_attrs: list[str] | None = None, optimize_numerics: bool = True) -> NoReturn:
    """Raise the error of PyTorch with TorchScript off: only a compiled module can be frozen."""
    if not builtins.isinstance(mod, ScriptModule):
        raise RuntimeError(
            "Freezing expects a ScriptModule as input. "
            "Please use torch.jit.script or torch.jit.trace to script your 'nn.Module'."
        )
    if mod.training:
        raise RuntimeError(
            "Freezing is currently only implemented for modules in eval mode. "
            "Please call .eval() on your module before freezing."
        )
    raise NotSupportedError(f"freeze: {_OFF}, which has no graph to freeze. Use the module as it is.")


def optimize_for_inference(mod: Any, other_methods: list[str] | None = None) -> NoReturn:
    """Raise the error of PyTorch with TorchScript off: only a compiled module can be optimized."""
    if not builtins.isinstance(mod, ScriptModule):
        raise RuntimeError(
            "optimize_for_inference expects a ScriptModule as input. "
            "Please use torch.jit.script or torch.jit.trace to script your 'nn.Module'."
        )
    raise NotSupportedError(f"optimize_for_inference: {_OFF}. Use the module as it is.")


def run_frozen_optimizations(
    mod: Any, optimize_numerics: bool = True, preserved_methods: list[str] | None = None
) -> NoReturn:
    """Raise NotSupportedError: only a frozen module has a graph."""
    raise NotSupportedError(f"run_frozen_optimizations: {_OFF}. Use the module as it is.")


def _get_trace_graph(f: Any, args: Any = (), kwargs: Any = None, **options: Any) -> NoReturn:
    """Raise: a trace records no TorchScript graph.

    Raises:
        NotSupportedError: Always.
    """
    raise NotSupportedError(
        "torch.jit._get_trace_graph: Flambeau has no TorchScript graphs. Use torch.fx.symbolic_trace, or "
        "torch.utils.flop_counter to count operations."
    )


def export_opnames(m: Any) -> NoReturn:
    """Raise NotSupportedError: only a compiled module lists its operators."""
    raise NotSupportedError(f"export_opnames: {_OFF}, which lists no operators.")


def save(m: Any, f: Any, _extra_files: dict[str, Any] | None = None) -> NoReturn:
    """Raise NotSupportedError: Flambeau does not write TorchScript files."""
    raise NotSupportedError(
        f"torch.jit.save: {_OFF}. Save the weights by `torch.save(module.state_dict(), file)` "
        "and create the module from its class."
    )


def load(
    f: Any,
    map_location: Any = None,
    _extra_files: dict[str, Any] | None = None,
    _restore_shapes: bool = False,
) -> NoReturn:
    """Raise NotSupportedError: Flambeau does not read TorchScript files.

    Raises:
        ValueError: If `f` is a path that does not exist or is a directory.
    """
    if builtins.isinstance(f, str | os.PathLike):
        if not os.path.exists(f):
            raise ValueError(f"The provided filename {os.fspath(f)} does not exist")
        if os.path.isdir(f):
            raise ValueError(f"The provided filename {os.fspath(f)} is a directory")
    raise NotSupportedError(
        "torch.jit.load: Flambeau does not run TorchScript files. With PyTorch, save the module's state_dict by "
        "`torch.save`; here, create the module from its class and load that."
    )


explain_absent_names(globals(), "torch.jit")
publish(globals())
