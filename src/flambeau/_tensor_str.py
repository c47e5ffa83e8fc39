"""torch._tensor_str: the options and the body of printed tensors, under names that libraries use."""

from __future__ import annotations

from typing import Any

from flambeau.core.names import lacking
from flambeau.tensor import printing
from flambeau.tensor.tensor import Tensor


class _PrintOptions:
    """The options that `torch.set_printoptions` sets, read-only: `precision`, `threshold`, `edgeitems` and others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(printing.options(), name)


PRINT_OPTS = _PrintOptions()


def _tensor_str(self: Tensor, indent: int) -> str:
    """Return the elements of a strided tensor as text, in brackets; later lines begin with `indent` blanks."""
    return printing.content_of(self, indent)


def _str(self: Tensor, *, tensor_contents: Any = None) -> str:
    """Return what `repr` of a tensor is."""
    return printing.text_of(self)


__getattr__ = lacking("torch._tensor_str")
