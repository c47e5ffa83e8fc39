"""torch._tensor_str: parts of the text of tensors, for classes that print themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor import printing
from flambeau.tensor.printing import PrintOptions, get_printoptions, set_printoptions
from flambeau.tensor.tensor import Tensor

__all__ = ["PRINT_OPTS", "get_printoptions", "printoptions", "set_printoptions"]

explain_absent_names(globals(), "torch._tensor_str")


class _Options:
    """The print options in use, as attributes that programs read and set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(printing.options(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in PrintOptions.__annotations__:
            raise AttributeError(f"tensors have no print option {name!r}", name=name, obj=self)
        printing.replace_options(printing.options().with_(**{name: value}))


PRINT_OPTS = _Options()


@contextmanager
def printoptions(**kwargs: Any) -> Iterator[None]:
    """Set print options in a block. The arguments are those of `torch.set_printoptions`."""
    saved = printing.options()
    set_printoptions(**kwargs)
    try:
        yield
    finally:
        printing.replace_options(saved)


def _tensor_str(self: Tensor, indent: int) -> str:
    """Return a tensor's values as text whose lines after the first are indented."""
    return printing.content_of(self, indent)


def _str_intern(inp: Tensor, *, tensor_contents: str | None = None) -> str:
    """Return a tensor's text; `tensor_contents` stands for its values if it is given."""
    return printing.text_of(inp, tensor_contents)


def _str(self: Tensor, *, tensor_contents: str | None = None) -> str:
    """Return a tensor's text; `tensor_contents` stands for its values if it is given."""
    return printing.text_of(self, tensor_contents)


def _add_suffixes(
    tensor_str: str, suffixes: Sequence[str], indent: int, force_newline: bool, linewidth: int | None = None
) -> str:
    """Append suffixes and a bracket to a tensor's text.

    Args:
        tensor_str: Text of the prefix and the values.
        suffixes: Texts such as "dtype=torch.float64".
        indent: Columns before lines after the first.
        force_newline: True for a line break before the first suffix.
        linewidth: Columns of a line; None means the print option.
    """
    return printing.with_suffixes(tensor_str, suffixes, indent, force_newline, linewidth)
