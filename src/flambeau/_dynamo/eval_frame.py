"""torch._dynamo.eval_frame: `torch.compile`'s lower level, and exports, which need a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.compilation import CompileContext, DisableContext, DynamoStance, OptimizedModule
from flambeau.nn.compilation import NullDecorator as _NullDecorator
from flambeau.nn.compilation import find_innermost as innermost_fn
from flambeau.nn.compile_options import Backend, lookup_backend

__all__ = [
    "DisableContext", "DynamoStance", "OptimizedModule", "explain", "export", "innermost_fn", "is_dynamo_supported",
    "is_inductor_supported", "optimize", "optimize_assert",
]  # fmt: skip

OptimizeContext = _TorchDynamoContext = CompileContext


def optimize(
    backend: str | Backend = "inductor",
    *,
    nopython: bool = False,
    disable: bool = False,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> CompileContext | _NullDecorator:
    """Return a decorator that lets a function or module run eagerly, as `torch.compile` does.

    Args:
        backend: The name of a backend, or a function, as for `torch.compile`.
        nopython: In PyTorch, True refuses functions that are not captured as one graph.
        disable: If True, the decorator returns its argument itself.
        dynamic: In PyTorch, whether code for variable sizes is generated.
        kwargs: PyTorch's further arguments about its guards. No effect here.

    Raises:
        torch._dynamo.exc.InvalidBackend: If the backend is the name of none.
    """
    if disable or os.environ.get("TORCHDYNAMO_DISABLE", "") == "1":
        return _NullDecorator()
    lookup_backend(backend)
    config = getattr(backend, "get_compiler_config", lambda: None)()
    return CompileContext(backend, config, nopython, dynamic)


def optimize_assert(backend: str | Backend, **kwargs: Any) -> CompileContext | _NullDecorator:
    """Return `optimize(backend, nopython=True)`."""
    return optimize(backend, nopython=True, **kwargs)


def is_dynamo_supported() -> bool:
    """Return False, because Flambeau captures no graphs."""
    return False


def is_inductor_supported() -> bool:
    """Return False, because Flambeau compiles nothing."""
    return False


def explain(f: Callable[..., Any], *extra_args: Any, **extra_kwargs: Any) -> Any:
    """Return a report on the capture of a function: its graphs, and where and why capture stops.

    A function with a backend of the program is called once. Of others, the report is about `mode="reduce-overhead"`:
    they are called twice, for the warm-up and the capture. Called with the function alone, it returns a function of the
    arguments. `str()` of the result is a report.

    Args:
        f: The function or module, compiled or not.
        extra_args: Its arguments, in the older form of the call.
        extra_kwargs: Its keyword arguments.
    """

    def inner(*args: Any, **kwargs: Any) -> Any:
        return import_module("flambeau.nn.replay.explanation").explain(f, args, kwargs)

    if extra_args or extra_kwargs:
        return inner(*extra_args, **extra_kwargs)
    return inner


def export(f: Callable[..., Any], *extra_args: Any, **extra_kwargs: Any) -> NoReturn:
    """Raise NotSupportedError: there are no captured graphs to export."""
    raise NotSupportedError(
        "torch._dynamo.export: Flambeau runs compiled functions eagerly and captures no graphs. Export the model "
        "with PyTorch, from weights saved by `torch.save(module.state_dict(), file)`."
    )


explain_absent_names(globals(), "torch._dynamo.eval_frame")
