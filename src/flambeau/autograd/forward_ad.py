"""torch.autograd.forward_ad: dual tensors, whose tangents operators propagate."""

from __future__ import annotations

from typing import NamedTuple

from flambeau.core.dtype import FLOATING
from flambeau.core.public_names import lacking, publish
from flambeau.tensor import forward_mode
from flambeau.tensor.tensor import Tensor

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]


class UnpackedDualTensor(NamedTuple):
    """The parts of a dual tensor.

    Attributes:
        primal: The tensor without its tangent.
        tangent: The tangent; None if there is none.
    """

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level() -> int:
    """Open a dual level, and return its number.

    Raises:
        RuntimeError: If one is open.
    """
    if forward_mode.local.levels:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
    forward_mode.open_level()
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the dual level and drop its tangents.

    Raises:
        RuntimeError: If `level` is not the number of the open one.
    """
    levels = forward_mode.local.levels
    if not levels:
        raise RuntimeError("Dual level must be a positive number.")
    if level is not None and level != len(levels) - 1:
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is not supported."
        )
    forward_mode.close_level(levels[-1])


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Return a view of a tensor that has a tangent.

    Args:
        tensor: The primal.
        tangent: The tangent, of the primal's shape.
        level: The number of the open level.

    Raises:
        RuntimeError: If no level is open, or the sizes or dtypes differ.
        ValueError: If one is not of a floating-point or complex dtype.
    """
    if not forward_mode.local.levels:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first."
        )
    for t, name in ((tensor, "primal"), (tangent, "tangent")):
        if t.meta.dtype.category < FLOATING:
            raise ValueError(f"Expected {name} to be floating point or complex, but got: {t.dtype}")
    return forward_mode.make_dual(tensor, tangent, forward_mode.local.levels[-1])


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the primal and the tangent of a tensor; the tangent is None outside of levels.

    Args:
        tensor: The tensor.
        level: The number of the open level.
    """
    if not forward_mode.local.levels:
        return UnpackedDualTensor(tensor, None)
    innermost = forward_mode.local.levels[-1]
    return UnpackedDualTensor(
        forward_mode.without_tangent(tensor, innermost), forward_mode.tangent_of(tensor, innermost)
    )


class dual_level:
    """A context in which tensors may have tangents."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *error: object) -> None:
        exit_dual_level()


publish({name: globals()[name] for name in ("__name__", *__all__)})  # Tensor is not of this module
_lacking = lacking("torch.autograd.forward_ad")


def __getattr__(name: str) -> int:
    """Return, for `_current_level`, the number of the open dual level; -1 if there is none."""
    return len(forward_mode.local.levels) - 1 if name == "_current_level" else _lacking(name)
