"""Signatures of PyTorch's argument parser that differ from the parameters of the functions here.

The decorator `signatures` states them if PyTorch's parser has several for a function, or parameters of other names or
types. All other functions are checked by their annotations. `tests/oracle/names/test_signatures.py` compares both with
PyTorch's stubs.

A line is one signature. Types are those of `arg_errors.KINDS`; `=` marks an optional parameter; `**made` stands for the
keywords of creation functions. A method uses the line of its function without the first parameter, unless it has its
own line, `Tensor.name`. `F.name` is a function of `torch.nn.functional`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MADE = (
    "dtype: dtype | None=, layout: layout | None=, device: Any=, pin_memory: bool | None=, "
    "requires_grad: bool | None="
)
"""What `**made` stands for."""

listed: dict[str, list[str]] = {}
"""The parameters of each signature, by the name of the function."""
documented: dict[str, str] = {}
"""The parameters that the documentation shows, with their defaults, by the name of the function."""
renamed: dict[str, dict[str, str]] = {}
"""Names of arguments of PyTorch's parser -> those of the definition, by the name of the function."""
compared_by_body: dict[Callable[..., Any], frozenset[str]] = {}
"""Parameters that functions of `torch.nn.functional` compare themselves."""
read_by_parser: set[Callable[..., Any]] = set()
"""Functions of `torch.nn.functional` that PyTorch's parser reads. Those that PyTorch writes in Python check less."""


def signatures(lines: str = "", *, shown: str = "") -> Callable[[F], F]:
    """Note how PyTorch's parser reads the arguments of a function and of its other names.

    Args:
        lines: The signatures; further lines of one are indented.
        shown: The signatures that `help()` shows, with defaults, of functions whose definitions do not state them.
    """
    for name, parameters in _split(lines):
        keywords = MADE if "*, " in parameters else f"*, {MADE}"
        listed.setdefault(name, []).append(parameters.replace("**made", keywords))
    documented.update(_split(shown))
    return lambda define: define


def accepts(function: str, **names: str) -> Callable[[F], F]:
    """Register argument names of PyTorch's parser that the definition names otherwise: `accepts("split",
    theirs="mine")`.
    """
    renamed[function] = names
    return lambda define: define


def by_parser(define: F) -> F:
    """Register a function of `torch.nn.functional` of which PyTorch's C++ parser checks the arguments first."""
    read_by_parser.add(define)
    return define


def compares(*names: str) -> Callable[[F], F]:
    """Note parameters that the body of a function of `torch.nn.functional` compares: it does not use them in each
    call, or computes with them in Python. The argument checker compares the others before the call.
    """

    def note(define: F) -> F:
        compared_by_body[define] = frozenset(names)
        return define

    return note


def _split(lines: str) -> Iterator[tuple[str, str]]:
    for line in lines.strip().replace("\n    ", " ").split("\n") if lines else ():
        name, _, parameters = line.removesuffix(")").partition("(")
        yield name, parameters


def signatures_of(name: str, method: bool) -> list[str]:
    """Return the listed signatures of a function or a method; none if its annotations define them."""
    if method:
        own = listed.get(f"Tensor.{name}")
        return own if own is not None else [_without_first(text) for text in listed.get(name, ())]
    own = listed.get(name)
    return own if own is not None else listed.get(name.removeprefix("F."), [])


def _without_first(parameters: str) -> str:
    return parameters.partition(", ")[2]
