"""torch.nn._reduction: the words and numbers of reductions, which loss functions of libraries translate."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.functional.loss import reduction_of

_NUMBERS = {"none": 0, "mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """Return the number of a reduction in operators of `torch.ops.aten`.

    Raises:
        ValueError: If there is no such reduction.
    """
    return _NUMBERS[reduction_of(None, None, reduction)]


def legacy_get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """Return the reduction that the deprecated arguments of a loss select.

    Args:
        size_average: False for the sum instead of the mean.
        reduce: False for no reduction.
        emit_warning: Warn that the arguments are deprecated.
    """
    if emit_warning:
        return reduction_of(size_average is not False, reduce, "mean")
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def legacy_get_enum(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> int:
    """Return the number of the reduction that `legacy_get_string` returns."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))


explain_absent_names(globals(), "torch.nn._reduction")
