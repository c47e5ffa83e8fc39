"""torch._dynamo.decorators: marks of functions and tensors for PyTorch's compiler.

The marks are PyTorch's attributes, so that programs can read them. They change nothing here, because functions run
eagerly.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from flambeau._dynamo import config
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.compilation import (
    CompileContext,
    DisableContext,
    DynamoStance,
    exchange_stance,
    find_innermost,
)
from flambeau.nn.compile_options import Backend
from flambeau.nn.compiler_settings import Patch
from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor

Index = int | list[int] | tuple[int, ...]

_PATCHES = (
    "verbose", "verify_correctness", "rewrite_assert_with_torch_assert", "capture_scalar_outputs",
    "allow_unspec_int_on_nn_module", "skip_torchrec", "dont_skip_tracing", "nested_graph_breaks",
)  # fmt: skip


class _Polyfills:
    """The substitutes that the program registered for functions.

    Attributes:
        by_function: Function -> its substitute.
    """

    by_function: dict[Any, Any] = {}


def reset() -> None:
    """Discard the graphs that compiled functions captured, which are then captured again.

    Marks of steps (`cudagraph_mark_step_begin`) are forgotten, as in PyTorch.
    """
    replay = sys.modules.get(
        "flambeau.nn.replay.replayed_function"
    )  # loaded with the first function that replays
    if replay is not None:
        replay.reset()


def run(fn: Callable[..., Any] | None = None) -> Any:
    """Return a function that runs `fn` without compiling it; without `fn`, return a decorator."""
    context = CompileContext()
    return context if fn is None else context(_require_callable(fn))


def disable(
    fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
) -> Any:
    """Return a function that the compiler leaves to Python, or a decorator.

    Args:
        fn: The function, module or class.
        recursive: True if functions that it calls are left to Python, too.
        reason: A text that PyTorch shows.
        wrapping: True if the result has the name and docstring of `fn`.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    context = DisableContext(reason, wrapping, recursive)
    return context if fn is None else context(_require_callable(fn))


def _require_callable(fn: Any) -> Any:
    fn = find_innermost(fn)
    if not callable(fn):
        raise AssertionError("fn must be callable")
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Mark a function that returns the same value each time, and return it."""
    fn._dynamo_marked_constant = True
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Return a function that PyTorch's compiler need not look into; of a list, a list of them.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    return _map_callables(fn, "allow_in_graph expects a callable")


def disallow_in_graph(fn: Any) -> Any:
    """Return a function that PyTorch's compiler leaves to Python; of a list, a list of them.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    return _map_callables(fn, "disallow_in_graph expects a callable")


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `traceable_fn`, which PyTorch's compiler traces without looking at its bytecode."""
    if not callable(traceable_fn):
        raise AssertionError("nonstrict_trace expects a callable")

    @functools.wraps(traceable_fn)
    def call_original(*args: Any, **kwargs: Any) -> Any:
        return traceable_fn(*args, **kwargs)

    return call_original


def forbid_in_graph(fn: Any) -> Any:
    """Mark a function that must not be called in compiled code, and return it; of a list, a list of them.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    if isinstance(fn, list | tuple):
        return [forbid_in_graph(item) for item in fn]
    if not callable(fn):
        raise AssertionError("forbid_in_graph applies only to callables")
    fn._dynamo_forbidden = True  # type: ignore[attr-defined]
    return fn


def _map_callables(fn: Any, text: str) -> Any:
    if isinstance(fn, list | tuple):
        return [_map_callables(item, text) for item in fn]
    if not callable(fn):
        raise AssertionError(text)
    return fn


def graph_break(msg: str = "") -> None:
    """Mark a line at which PyTorch's compiler ends a graph. No effect here."""


def skip_frame(msg: str = "") -> None:
    """Mark a function that PyTorch's compiler leaves to Python. No effect here."""


def step_unsupported(msg: str = "") -> None:
    """Mark a line at which PyTorch's compiler stops. No effect here."""


def is_dynamo_disable_recursive(method: Callable[..., Any]) -> bool | None:
    """Return the argument `recursive` of `disable` for a disabled function; None for others."""
    return getattr(method, "_torchdynamo_disable_recursive", None)


# -- substitutes ------------------------------------------------------------------------------------------------


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a Python function as substitute of another one in compiled code.

    The decorated function calls the original, because nothing is compiled.

    Args:
        original_fn: The function to substitute, usually one written in C.
        can_constant_fold_through: True if the compiler may evaluate it for constants.
        skip_signature_check: If False, the signatures must agree.

    Raises:
        TypeError: If one of the two is not a function, or the signatures differ.
        ValueError: If the function has a substitute already.
    """
    if not _is_function(original_fn):
        raise TypeError(f"substitute_in_graph expects a function but got {type(original_fn)!r}")

    def register(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
        if not _is_function(traceable_fn):
            raise TypeError(f"@substitute_in_graph(...) expects a function but got {type(traceable_fn)!r}")
        if not skip_signature_check:
            _check_signatures(original_fn, traceable_fn)
        if original_fn in _Polyfills.by_function:
            raise ValueError(f"Duplicate polyfilled object {original_fn}")

        @functools.wraps(traceable_fn)
        def call_original(*args: Any, **kwargs: Any) -> Any:
            return original_fn(*args, **kwargs)

        marked: Any = call_original
        marked.__torch_dynamo_original__ = original_fn
        marked.__torch_dynamo_polyfill__ = traceable_fn
        marked.__torch_dynamo_can_constant_fold_through__ = can_constant_fold_through
        _Polyfills.by_function.update({original_fn: call_original, call_original: call_original})
        return call_original

    return register


def _is_function(value: object) -> bool:
    kinds = (
        FunctionType,
        BuiltinFunctionType,
        MethodType,
        type(str.join),
        type(dict.__init__),
        type("".join),
    )
    return isinstance(value, kinds)


def _check_signatures(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    try:
        expected = inspect.signature(original)
    except ValueError:
        return
    actual = inspect.signature(substitute)
    any_arguments = _identify(inspect.signature(lambda *args, **kwargs: None))
    if any_arguments not in (_identify(expected), _identify(actual)) and _identify(expected) != _identify(
        actual
    ):
        raise TypeError(f"Signature mismatch between {original} and {substitute}: {expected} != {actual}")


def _identify(signature: inspect.Signature) -> Any:
    """Return the parts of a signature that must be equal: positional names, keyword names, defaults."""
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    fixed = [p for p in signature.parameters.values() if p.kind not in variable]
    return (
        [p.name for p in fixed if p.kind is not p.KEYWORD_ONLY],
        {p.name for p in fixed if p.kind is p.KEYWORD_ONLY},
        {p.name: p.default for p in fixed},
    )


# -- dimensions of tensors ----------------------------------------------------------------------------------------


class _DimRange(NamedTuple):
    """The sizes that a dimension may have."""

    dim: int
    min: int | None
    max: int | None


def mark_dynamic(
    t: Any,
    index: Index,
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: list[Any] | None = None,
) -> None:
    """Mark dimensions of a tensor whose sizes vary. No effect here.

    Args:
        t: The tensor.
        index: A dimension, or a list or tuple of them.
        hint_override: A size for the compiler to expect.
        min: The smallest size.
        max: The largest size.
        specialize_on: Conditions for each of which the compiler generates separate code.

    Raises:
        AssertionError: If `index` is none of these.
    """
    for i in _indices(index):
        if not hasattr(t, "_dynamo_dynamic_indices"):
            t._dynamo_dynamic_indices, t._dynamo_dynamic_range = set(), set()
            t._dynamo_hint_overrides = {}
        if not hasattr(t, "_specialize_on"):
            t._specialize_on = {}
        if hint_override and isinstance(index, int):
            t._dynamo_hint_overrides[i] = hint_override
        t._dynamo_dynamic_indices.add(i)
        t._dynamo_dynamic_range.add(_DimRange(i, min, max))
        t._has_dynamo_dim_marking = True
        t._specialize_on[i] = specialize_on if specialize_on is not None else []


def maybe_mark_dynamic(t: Any, index: Index) -> None:
    """Mark dimensions of a tensor whose sizes may vary. No effect here.

    Args:
        t: The tensor.
        index: A dimension, or a list or tuple of them.

    Raises:
        AssertionError: If `index` is none of these.
    """
    _add(t, "_dynamo_weak_dynamic_indices", _indices(index))


def mark_unbacked(
    t: Any,
    index: Index,
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: list[Any] | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Mark dimensions of a tensor whose sizes the compiler must not read. No effect here.

    Args:
        t: The tensor.
        index: A dimension, or a list or tuple of them.
        hint_override: A size for the compiler to expect.
        strict: True if generating code for one size is an error.
        specialize_on: Conditions for each of which the compiler generates separate code.
        shape_id: A name that dimensions of equal sizes share.
        min: The smallest size.
        max: The largest size.

    Raises:
        AssertionError: If `index` is none of these.
    """
    indices = _indices(index)
    if not isinstance(index, int):
        hint_override, strict, specialize_on = None, False, None  # as PyTorch does
    if strict:
        _add(t, "_dynamo_strict_unbacked_indices", indices)
        return
    for i in indices:
        t._specialize_on = {}
        for name, value in (
            ("_dynamo_hint_overrides", hint_override or None),
            ("_dynamo_unbacked_bounds", None if min is None and max is None else (min, max)),
            ("_dynamo_shape_ids", shape_id),
        ):
            if value is not None or (name == "_dynamo_hint_overrides" and not hasattr(t, name)):
                values = t.__dict__.setdefault(name, {})
                values.update({} if value is None else {i: value})
        t._specialize_on[i] = specialize_on if specialize_on is not None else []
        _add(t, "_dynamo_unbacked_indices", [i])


def mark_static(t: Any, index: Index | None = None) -> Any:
    """Mark dimensions of a tensor whose sizes do not vary, or a class of modules. No effect here.

    Args:
        t: The tensor, or a subclass of Module, which is returned.
        index: A dimension, or a list or tuple of them; None for all.

    Raises:
        TypeError: If `t` is neither.
        AssertionError: If `index` is none of these.
    """
    if not isinstance(t, Tensor):
        if issubclass(t, Module):
            t._dynamo_marked_static = True  # type: ignore[attr-defined]
            return t
        raise TypeError(f"mark_static expects a tensor/nn.Module class but received {type(t)}")
    indices = range(t.dim()) if index is None else _indices(index)
    if indices:
        _add(t, "_dynamo_static_indices", indices)
    return None


def mark_static_address(t: Any, guard: bool = False) -> None:
    """Mark a tensor whose address does not change. No effect here.

    Args:
        t: The tensor.
        guard: True if the compiler must check the address.

    Raises:
        TypeError: If `t` is not a tensor.
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"mark_static_address expects a tensor but received {type(t)}")
    t._dynamo_static_input_type = "guarded" if guard else "unguarded"  # type: ignore[attr-defined]


def _indices(index: Any) -> Sequence[int]:
    if isinstance(index, int):
        return [index]
    if not isinstance(index, list | tuple):
        raise AssertionError(f"Expected index to be int, list, or tuple, got {type(index)}")
    return index


def _add(t: Any, name: str, indices: Sequence[int]) -> None:
    if not hasattr(t, name):
        setattr(t, name, set())
    getattr(t, name).update(indices)
    t._has_dynamo_dim_marking = True


# -- settings -----------------------------------------------------------------------------------------------------


class set_stance(ContextDecorator):
    """A function, decorator or context manager that sets the stance of the compiler.

    Every stance runs eagerly here: see Note [Compiled functions run eagerly].

    Args:
        stance: PyTorch's name of a stance. An unknown one raises RuntimeError when a compiled function is called.
        skip_guard_eval_unsafe: In PyTorch, whether compiled functions check their assumptions less.
        force_backend: In PyTorch, a backend for all functions; only with the stance "default".

    Raises:
        RuntimeError: If `force_backend` is given for another stance.
    """

    _dynamo_forbidden = True

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Backend | None = None,
    ) -> None:
        if force_backend is not None and stance != "default":
            raise RuntimeError("non-default stance cannot have force_backend set")
        self.stance = DynamoStance(stance, skip_guard_eval_unsafe, force_backend)
        self.prev = exchange_stance(self.stance)

    def __call__(self, func: Any) -> Any:
        exchange_stance(self.prev)
        wrapper: Any = super().__call__(func)
        wrapper._dynamo_forbidden = True
        return wrapper

    def __enter__(self) -> None:
        exchange_stance(self.stance)

    def __exit__(self, *exception: object) -> None:
        exchange_stance(self.prev)


def patch_dynamo_config(arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Patch:
    """Return a decorator and context manager that changes settings which PyTorch may change while it compiles.

    Args:
        arg1: The name of a setting, or names and values as a dict or as pairs.
        arg2: The value, if `arg1` is a name.
        kwargs: Names and values, if `arg1` is None.

    Raises:
        ValueError: If a setting is not one of these.
    """
    patch: Patch = config.patch(dict(arg1) if isinstance(arg1, tuple) else arg1, arg2, **kwargs)
    for name in patch.changes:
        if name not in _PATCHES:
            raise ValueError(f"patch_dynamo_config does not support patching config {name}")
    return patch


def dont_skip_tracing(fn: Callable[..., Any] | None = None) -> Any:
    """Return a decorator and context manager in which PyTorch compiles functions that it skips. No effect here."""
    patch = patch_dynamo_config(dont_skip_tracing=True)
    return patch(fn) if fn else patch


class _NoEffect(ContextDecorator):
    """A decorator and context manager for a setting that changes nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def error_on_graph_break(error_on_graph_break: bool) -> ContextDecorator:
    """Return a decorator and context manager that says whether two graphs are an error. No effect here."""
    return _NoEffect()


def override_cudagraphs(fwd: bool | None = None, bwd: bool | None = None) -> ContextDecorator:
    """Return a decorator and context manager that says whether CUDA graphs are captured. No effect here."""
    return _NoEffect()


explain_absent_names(globals(), "torch._dynamo.decorators")
