"""`ExceptionWrapper`: an exception on its way from another process or thread, with its traceback as text."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NoReturn


class ExceptionWrapper:
    """The exception that is being handled, to be raised again in another process. It holds no frames, so it can be
    pickled.

    Args:
        where: Description of the process that caught it: "in DataLoader worker process 0".
    """

    __slots__ = ("exc_msg", "exc_type", "where")

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        kind, value, trace = sys.exc_info() if exc_info is None else exc_info
        self.exc_type: Any = kind
        self.exc_msg = "".join(traceback.format_exception(kind, value, trace))
        self.where = where

    def reraise(self) -> NoReturn:
        """Raise an exception of the same type whose text has the origin and its traceback.

        RuntimeError is raised for a type that cannot be created from a text.
        """
        text = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        kind = self.exc_type
        if kind is KeyError:
            text = _PlainText(text)  # a KeyError shows its key's repr
        elif getattr(kind, "message", None):
            raise kind(message=text)
        try:
            error = kind(text)
        except Exception:
            raise RuntimeError(text) from None
        raise error


class _PlainText(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
