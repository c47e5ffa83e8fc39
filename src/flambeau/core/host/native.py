"""`mypyc_attr`: the decorator by which a class of a compiled module says how it is compiled.

Plain Python ignores it, and the compiler removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**options: Any) -> Any:
        """Return a decorator that returns its class."""
        return lambda kind: kind
