"""torch._dynamo.exc: exceptions of PyTorch's compiler, for programs that catch them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.compile_options import InvalidBackend, TorchDynamoException

__all__ = [
    "BackendCompilerFailed", "FailOnRecompileLimitHit", "InternalTorchDynamoError", "InvalidBackend", "RecompileError",
    "ResetRequired", "ShortenTraceback", "SkipFrame", "TorchDynamoException", "TorchRuntimeError",
    "UncapturedHigherOrderOpError", "Unsupported", "UserError", "UserErrorType",
]  # fmt: skip


class InternalTorchDynamoError(TorchDynamoException):
    """The error of a defect of the compiler."""


class SkipFrame(TorchDynamoException):
    """The signal that the compiler leaves a function to Python."""


class TorchRuntimeError(TorchDynamoException):
    """The error of an operator that failed while the compiler traced it."""

    def __init__(self, msg: str, real_stack: Any = None) -> None:
        super().__init__(msg)
        self.msg = msg
        self.real_stack = real_stack


class ResetRequired(TorchDynamoException):
    """The error of a function that is to be compiled by two different backends."""

    def __init__(self) -> None:
        super().__init__(
            "\nMust call `torch._dynamo.reset()` before changing backends.  Detected two calls to\n"
            "`torch.compile()` with a different backend compiler arguments.\n"
        )


class ShortenTraceback(TorchDynamoException):
    """An error that PyTorch shows without the compiler's own frames."""

    def __init__(self, *args: Any, first_useful_frame: Any) -> None:
        super().__init__(*args)
        self.first_useful_frame = first_useful_frame


class BackendCompilerFailed(ShortenTraceback):
    """The error of a backend that raised."""

    def __init__(self, backend_fn: Any, inner_exception: Exception, first_useful_frame: Any) -> None:
        self.backend_name = getattr(backend_fn, "__name__", "?")
        self.inner_exception = inner_exception
        text = f"backend={self.backend_name!r} raised:\n{type(inner_exception).__name__}: {inner_exception}"
        super().__init__(text, first_useful_frame=first_useful_frame)


class Unsupported(TorchDynamoException):
    """The error of code that the compiler cannot capture."""

    def __init__(self, msg: str, gb_type: str = "", **kwargs: Any) -> None:
        super().__init__(msg)
        self.msg = msg
        self.gb_type = gb_type


class RecompileError(TorchDynamoException):
    """The error of a function that would be compiled again."""


class UserErrorType(Enum):
    """The kinds of `UserError`."""

    DYNAMIC_CONTROL_FLOW = auto()
    ANTI_PATTERN = auto()
    STANDARD_LIBRARY = auto()
    CONSTRAINT_VIOLATION = auto()
    DYNAMIC_DIM = auto()
    INVALID_INPUT = auto()
    INVALID_OUTPUT = auto()
    UNSUPPORTED_ALIASED_MUTATED_DYNAMIC_INPUTS = auto()


class UserError(TorchDynamoException):
    """The error of code that runs eagerly and cannot be compiled."""

    def __init__(self, error_type: UserErrorType, msg: str, case_name: str | None = None) -> None:
        super().__init__(msg)
        self.error_type = error_type
        self.msg = self.message = msg


class UncapturedHigherOrderOpError(TorchDynamoException):
    """The error of a control flow operator whose function cannot be captured."""

    def __init__(self, msg: str, real_stack: Any = None) -> None:
        super().__init__(msg)
        self.msg = msg
        self.real_stack = real_stack


class FailOnRecompileLimitHit(Exception):
    """The error of a function that was compiled too often."""


explain_absent_names(globals(), "torch._dynamo.exc")
