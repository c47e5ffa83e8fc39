"""`elementwise`: user kernels, one pass over memory, from an expression in Python's syntax."""

from __future__ import annotations

from typing import Any

from flambeau.ops.pointwise.expression import operator
from flambeau.ops.pointwise.expression_text import read
from flambeau.tensor.call import call, call_into
from flambeau.tensor.tensor import Tensor

__all__ = ["elementwise"]


class ElementwiseKernel:
    """A kernel that the program defines: see `elementwise`. `text` is its expression, `names` the names of its
    operands.
    """

    def __init__(self, text: str, name: str, differentiable: bool) -> None:
        for what, value in (("text", text), ("name", name)):
            if not isinstance(value, str):
                raise TypeError(f"elementwise(): {what} must be a str, not {type(value).__name__}")
        said = read(text)
        self.text = text
        self.names = said.names
        self._defaults = said.defaults
        self._several = said.several
        self._count = len(said.results)
        self._record = operator(name, said.results, len(said.names), differentiable)

    def __call__(self, *operands: Any, out: Any = None, **named: Any) -> Any:
        """Return the result, or a tuple of the results.

        Args:
            *operands: Tensors, at least one, and Python numbers.
            out: A tensor that takes the result, or a tuple of tensors. It may be an operand.
        """
        if named or len(operands) != len(self.names):
            operands = self._arguments(operands, named)
        tensors = 0
        for name, x in zip(self.names, operands, strict=True):
            if isinstance(x, Tensor):
                tensors += 1
            elif not isinstance(x, bool | int | float | complex):
                raise TypeError(f"{self!r}: {name} must be a tensor or a number, not {type(x).__name__}")
        if not tensors:
            raise TypeError(f"{self!r} needs a tensor among its operands")
        if out is not None:
            return self._store(operands, out)
        found = call(self._record, operands)
        return (found,) if self._several and self._count == 1 else found

    def _store(self, operands: tuple[Any, ...], out: Any) -> Any:
        targets = tuple(out) if self._several else (out,)
        if len(targets) != self._count:
            raise TypeError(f"{self!r} gives {self._count} results, but out has {len(targets)}")
        if len(targets) > 1 and any(
            t.memory is x.memory for t in targets[:-1] for x in operands if isinstance(x, Tensor)
        ):
            raise RuntimeError(f"{self!r}: of several results only the last may be stored in an operand")
        call_into(self._record, targets, operands, resize=True)
        return out

    def _arguments(self, operands: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if len(operands) > len(self.names):
            raise TypeError(f"{self!r} takes {len(self.names)} operands but {len(operands)} were given")
        given = dict(zip(self.names, operands, strict=False))
        for name, value in named.items():
            if name not in self.names:
                raise TypeError(f"{self!r} got an unexpected operand {name!r}")
            if name in given:
                raise TypeError(f"{self!r} got multiple values for operand {name!r}")
            given[name] = value
        given = self._defaults | given
        missing = [name for name in self.names if name not in given]
        if missing:
            raise TypeError(f"{self!r} misses the operands {', '.join(missing)}")
        return tuple([given[name] for name in self.names])

    def __repr__(self) -> str:
        return f"elementwise({self.text!r})"


def elementwise(text: str, *, name: str = "elementwise", differentiable: bool = False) -> ElementwiseKernel:
    """Return a function of tensors that computes an expression for each element, in one kernel.

        fused = torch.cuda.elementwise("x * y + z")
        leaky = torch.cuda.elementwise("lambda x, slope=0.01: x if x > 0 else slope * x", differentiable=True)
        leaky(a, slope=0.2)

    Args:
        text: An expression in Python's syntax; its operands are in the order in which it names them, or a lambda with
            parameters, which may have numbers for defaults. Operators, comparisons, `a if c else b`, pi, inf, nan, the
            pointwise functions of torch (exp, atan2, erf, where, ...), min and max. A tuple gives several results.
        name: The name in race reports, timelines and profiles.
        differentiable: Record calls in the autograd graph. The gradients of all operands are one kernel, by the chain
            rule over the expression, and have gradients themselves. Without it, backward through the result raises.

    Operands broadcast. The kernel computes in the dtype to which PyTorch promotes all operands and numbers together; a
    floating-point dtype if a function makes floats of integers. Half precision is computed in float32 and rounded once.
    The function exists only in Flambeau.

    Raises:
        SyntaxError: If `text` is not an allowed expression. The error shows the position.
        TypeError: If `text` is not a str.
        NotImplementedError: By a call, if a function does not take the dtype.
        RuntimeError: By a call, if shapes or devices do not match.
    """
    return ElementwiseKernel(text, name, differentiable)
