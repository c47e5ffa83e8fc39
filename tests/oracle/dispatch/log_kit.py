"""Programs under a mode that logs operators, in either library."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from support import torch

if torch is not None:
    import torch.utils._python_dispatch


def describe(library: Any, value: Any) -> str:
    """Return the dtypes and shapes of the tensors in a value."""
    if isinstance(value, library.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        inner = ", ".join(filter(None, [describe(library, x) for x in value]))
        return f"[{inner}]" if inner else ""
    return ""


def log_operators(library: Any, program: Callable[[Any], Any]) -> tuple[list[str], Any]:
    """Run `program(library)`, and return its operators with dtypes and shapes, and its result."""
    lines: list[str] = []

    class Log(library.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            lines.append(f"{func}{describe(library, args)} -> {describe(library, result)}")
            return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Log():
            result = program(library)
    return lines, result


def operands(library: Any) -> dict[str, Any]:
    """Return the tensors that programs name: equal ones in both libraries."""

    def leaf(*shape: int) -> Any:
        count = 1
        for n in shape:
            count *= n
        numbers = library.arange(1, 1 + count, dtype=library.float32)
        return (numbers.reshape(shape) * 0.37).sin().requires_grad_()

    x = leaf(3, 4)
    return {
        "t": library, "F": library.nn.functional, "x": x, "w": leaf(5, 4), "b": leaf(5), "q": leaf(2, 2, 3, 4),
        "v": leaf(4), "k": leaf(3, 2, 2, 2), "img": leaf(2, 2, 6, 6), "i": library.tensor([1, 2, 0]),
        "sq": leaf(3, 3), "seq": leaf(2, 2, 8), "m": library.tensor([[True, False, True, False]] * 3),
        "p": (leaf(3, 4).detach() * 0.4 + 0.5).requires_grad_(), "y": leaf(3, 4).detach(),
        "l": library.arange(12).reshape(3, 4), "z": library.zeros(2, 2), "one": library.ones(2),
        "vol": leaf(1, 2, 4, 4, 4),
    }  # fmt: skip


def evaluate(text: str, named: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a program that evaluates an expression of named tensors."""
    return lambda library: eval(text, dict(named))


def backward(value: Any) -> None:
    """Compute the gradients of a result, if it requires any."""
    if hasattr(value, "requires_grad") and value.requires_grad:
        (value.real if value.is_complex() else value).sum().backward()
