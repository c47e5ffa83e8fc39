"""Script modules and functions: Python's own, because TorchScript is off."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module

__all__ = ["RecursiveScriptModule", "ScriptFunction", "ScriptModule", "interface", "script", "script_method"]

_T = TypeVar("_T")


class ScriptWarning(Warning):
    """A warning of the TorchScript compiler."""


class ScriptFunction:
    """A function that TorchScript has compiled; Flambeau has none, so none is an instance."""

    def __init__(self) -> NoReturn:
        raise TypeError("ScriptFunction: No constructor defined!")


class ScriptModule(Module):
    """A base class for modules with `script_method`s, which run as Python here."""

    def __init__(self, arg: Any = None) -> None:
        super().__init__()


class RecursiveScriptModule(ScriptModule):
    """A module that `torch.jit.script` has compiled; it returns Python's module, so none is an instance."""


def script(
    obj: _T,
    optimize: None = None,
    _frames_up: int = 0,
    _rcb: Callable[[str], Any] | None = None,
    example_inputs: Any = None,
) -> _T:
    """Return a function, class or module unchanged, as PyTorch does with `PYTORCH_JIT=0`."""
    return obj


def script_method(fn: _T) -> _T:
    """Return a method of a `ScriptModule` unchanged."""
    return fn


def interface(obj: _T) -> _T:
    """Return a class whose methods declare what a TorchScript module has, unchanged.

    Raises:
        RuntimeError: If `obj` is not a class.
    """
    if not inspect.isclass(obj):
        raise RuntimeError("interface must be applied to a class")
    return obj


def _unwrap_optional(x: _T | None) -> _T:
    assert x is not None, "Unwrapping null optional"
    return x


explain_absent_names(globals(), "torch.jit._script")
