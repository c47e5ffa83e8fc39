"""Traced modules and functions, which run as Python, because Flambeau has no TorchScript."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from textwrap import indent
from typing import Any, TypeVar

from flambeau.core.public_names import explain_absent_names
from flambeau.jit._script import ScriptModule

__all__ = [
    "TopLevelTracedModule",
    "TracedModule",
    "TracerWarning",
    "TracingCheckError",
    "is_tracing",
    "trace",
]

_T = TypeVar("_T")


class TracerWarning(Warning):
    """A warning of the tracer; programs name it in `warnings.filterwarnings`."""

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Ignore the warnings that the tracer gives for PyTorch's own code."""
        warnings.filterwarnings("ignore", category=TracerWarning, module="torch.(?!jit)")


class TracingCheckError(Exception):
    """The error raised if a trace gives another result than the traced function."""

    def __init__(
        self, graph_diff_error: str | None, tensor_compare_error: str | None, extra_msg: str | None = None
    ) -> None:
        self.message = "Tracing failed sanity checks!\n"
        if extra_msg is not None:
            self.message += extra_msg + "\n"
        if graph_diff_error is not None:
            self.message += "ERROR: Graphs differed across invocations!\n"
            self.message += indent(graph_diff_error, "\t") + "\n"
        if tensor_compare_error is not None:
            self.message += (
                "ERROR: Tensor-valued Constant nodes differed in value "
                "across invocations. This often indicates that the tracer has encountered untraceable code.\n"
            )
            self.message += indent(tensor_compare_error, "\t") + "\n"
        super().__init__(self.message)


class TracedModule(ScriptModule):
    """A module within a traced one; `trace` returns Python's module, so none is an instance."""


class TopLevelTracedModule(TracedModule):
    """A module that `torch.jit.trace` has traced; it returns Python's module, so none is an instance."""


def is_tracing() -> bool:
    """Return True if a function is being traced, which is never so."""
    return False


def trace(
    func: _T,
    example_inputs: Any = None,
    optimize: None = None,
    check_trace: bool = True,
    check_inputs: Any = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_kwarg_inputs: dict[str, Any] | None = None,
    _store_inputs: bool = True,
) -> _T:
    """Return a function or module unchanged, without a call of it, as PyTorch does with `PYTORCH_JIT=0`."""
    return func


def trace_module(
    mod: _T,
    inputs: dict[str, Any],
    optimize: None = None,
    check_trace: bool = True,
    check_inputs: Any = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_inputs_is_kwarg: bool = False,
    _store_inputs: bool = True,
) -> _T:
    """Return a module unchanged, as PyTorch does with `PYTORCH_JIT=0`."""
    return mod


def _script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    vars(wrapper).update(__original_fn=fn, __script_if_tracing_wrapper=True)
    return wrapper


explain_absent_names(globals(), "torch.jit._trace")
