"""torch.compiler: functions around `torch.compile`, where compiled functions run eagerly.

See Note [Compiled functions run eagerly].
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flambeau import _dynamo
from flambeau._dynamo.external_utils import wrap_numpy as _wrap_numpy
from flambeau.compiler import config
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.nn.compilation import compile as _compile
from flambeau.nn.compile_options import CudagraphSteps, get_default_backend, set_default_backend
from flambeau.nn.parameter import Parameter

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "config", "cudagraph_mark_step_begin", "disable",
    "get_default_backend", "is_compiling", "is_dynamo_compiling", "is_exporting", "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe", "list_backends", "load_cache_artifacts", "load_compiled_function",
    "nested_compile_region", "reset", "save_cache_artifacts", "set_default_backend", "set_enable_guard_collectives",
    "set_stance", "skip_all_guards_unsafe", "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe", "substitute_in_graph", "wrap_numpy",
]  # fmt: skip

_are_guard_collectives_enabled = False


def compile(*args: Any, **kwargs: Any) -> Any:
    """Return `torch.compile(*args, **kwargs)`."""
    return _compile(*args, **kwargs)


def is_compiling() -> bool:
    """Return False, because Flambeau compiles and exports nothing."""
    return False


def is_dynamo_compiling() -> bool:
    """Return False, because Flambeau traces nothing for a compiler."""
    return False


def is_exporting() -> bool:
    """Return False, because Flambeau exports nothing."""
    return False


def reset() -> None:
    """Discard the graphs that compiled functions captured, which are then captured again."""
    _dynamo.reset()


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Return a function that the compiler leaves to Python, or a decorator.

    Args:
        fn: The function, module or class.
        recursive: True if functions that it calls are left to Python, too.
        reason: A text that PyTorch shows.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    return _dynamo.disable(fn, recursive, reason=reason)


def allow_in_graph(fn: Any) -> Any:
    """Return a function that PyTorch's compiler need not look into; of a list, a list of them.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    return _dynamo.allow_in_graph(fn)


def assume_constant_result(fn: Any) -> Any:
    """Mark a function that returns the same value each time, and return it."""
    return _dynamo.assume_constant_result(fn)


substitute_in_graph = _dynamo.substitute_in_graph


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Return the names that `torch.compile(..., backend=name)` accepts.

    Args:
        exclude_tags: Categories of backends to leave out.
    """
    return _dynamo.list_backends(exclude_tags)


def set_stance(
    stance: str = "default",
    *,
    skip_guard_eval_unsafe: bool = False,
    force_backend: str | Callable[..., Any] | None = None,
) -> Any:
    """Set the stance of the compiler; the result is a context manager and decorator, too.

    Every stance runs eagerly: see Note [Compiled functions run eagerly].

    Args:
        stance: PyTorch's name of a stance. An unknown one raises RuntimeError when a compiled function is called.
        skip_guard_eval_unsafe: In PyTorch, whether compiled functions check their assumptions less.
        force_backend: In PyTorch, a backend for all functions; only with the stance "default".

    Raises:
        RuntimeError: If `force_backend` is given for another stance.
    """
    return _dynamo.set_stance(
        stance, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=force_backend
    )


def set_enable_guard_collectives(enabled: bool) -> bool:
    """Store whether ranks should agree on compiling, which has no effect, and return what was stored before."""
    global _are_guard_collectives_enabled
    before, _are_guard_collectives_enabled = _are_guard_collectives_enabled, bool(enabled)
    return before


def cudagraph_mark_step_begin() -> None:
    """Begin a step. What functions with `mode="reduce-overhead"` return stays valid until they run in a later step.

    Without marks, each call of such a function overwrites what its previous call returned.
    """
    CudagraphSteps.number += 1


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that calls `fn`, a function of NumPy arrays.

    The tensors must be on the CPU and require no gradient. Results that are arrays become tensors.
    """
    return _wrap_numpy(fn)


def nested_compile_region(
    fn: Callable[..., Any] | None = None,
    *,
    options: Any = None,
    max_reuse_entries: int = 8,
    reuse_hash_fn: Callable[..., int] | None = None,
) -> Any:
    """Return a function that PyTorch compiles once and uses again, or a decorator. It calls `fn`.

    Args:
        fn: The function.
        options: Must be None, as in PyTorch.
        max_reuse_entries: In PyTorch, the number of compiled versions.
        reuse_hash_fn: In PyTorch, a function that selects one of them.

    Raises:
        RuntimeError: If there are options.
    """
    if options is not None:
        raise RuntimeError("nested_compile_region config is an experimental feature for testing only.")

    def wrap(func: Any) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        inner.__marked_compile_region_fn__ = func  # type: ignore[attr-defined]
        return inner

    return wrap(fn) if fn else wrap


# -- compiled functions in files ----------------------------------------------------------------------------------


def save_cache_artifacts() -> None:
    """Return None, because there are no compiled functions to save."""


def load_cache_artifacts(serialized_artifacts: bytes) -> NoReturn:
    """Raise NotSupportedError: Flambeau cannot run functions that PyTorch compiled.

    Args:
        serialized_artifacts: The bytes that PyTorch's `save_cache_artifacts` returned.
    """
    raise NotSupportedError(
        "torch.compiler.load_cache_artifacts: Flambeau cannot run functions that PyTorch compiled. Leave out the "
        "call: compiled functions run eagerly."
    )


def load_compiled_function(file: io.IOBase, **kwargs: Any) -> NoReturn:
    """Raise NotSupportedError: Flambeau cannot run functions that PyTorch compiled."""
    raise NotSupportedError(
        "torch.compiler.load_compiled_function: Flambeau cannot run functions that PyTorch compiled. Call the "
        "Python function."
    )


# -- filters of guards, which PyTorch calls with what its compiled functions check ---------------------------------


def keep_portable_guards_unsafe(guard_entries: Sequence[Any]) -> list[bool]:
    """Return True for guards of tensors' shapes and of global state."""
    return [
        g.guard_type in ("GLOBAL_STATE", "SHAPE_ENV") or (g.guard_type == "TENSOR_MATCH" and not g.is_global)
        for g in guard_entries
    ]


def skip_guard_on_inbuilt_nn_modules_unsafe(guard_entries: Sequence[Any]) -> list[bool]:
    """Return False for guards of PyTorch's own modules."""
    return [not g.orig_guard.source.is_unspecialized_builtin_nn_module() for g in guard_entries]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: Sequence[Any]) -> list[bool]:
    """Return False for guards of modules."""
    return [not g.orig_guard.source.is_unspecialized_nn_module() for g in guard_entries]


def keep_tensor_guards_unsafe(guard_entries: Sequence[Any], keep_parameters: bool = False) -> list[bool]:
    """Return True for guards of tensors.

    Args:
        guard_entries: The guards.
        keep_parameters: True if these include guards of parameters.
    """
    return [
        g.guard_type == "TENSOR_MATCH" and (keep_parameters or not isinstance(g.value, Parameter))
        for g in guard_entries
    ]


def skip_guard_on_globals_unsafe(guard_entries: Sequence[Any]) -> list[bool]:
    """Return False for guards of global variables."""
    return [not g.is_global for g in guard_entries]


def skip_all_guards_unsafe(guard_entries: Sequence[Any]) -> list[bool]:
    """Return False for all guards."""
    return [False for _ in guard_entries]


explain_absent_names(globals(), "torch.compiler")
publish(globals())
