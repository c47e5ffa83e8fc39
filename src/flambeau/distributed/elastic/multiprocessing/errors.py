"""torch.distributed.elastic.multiprocessing.errors: `record`, which reports a rank's exception to the launcher."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.excepthook import write_error

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = ["record"]

F = TypeVar("F", bound=Callable[..., Any])


def record(fn: F, error_handler: Any = None) -> F:
    """Decorate a program's main function so that the launcher reports its exception. The exception propagates."""

    @functools.wraps(fn)
    def call_and_record(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code == 0:
                return None
            raise
        except Exception as error:
            if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
                write_error(path, error, traceback.format_exc())
            raise

    return call_and_record  # type: ignore[return-value]


explain_absent_names(globals(), "torch.distributed.elastic.multiprocessing.errors")
