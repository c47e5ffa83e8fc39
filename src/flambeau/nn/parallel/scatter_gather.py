"""`scatter` and `gather`: split containers of tensors into a part for each GPU, and combine such parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.parallel._functions import Gather, Scatter
from flambeau.tensor.tensor import Tensor

__all__ = ["gather", "scatter", "scatter_kwargs"]

explain_absent_names(globals(), "torch.nn.parallel.scatter_gather")


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """Return parts of `inputs`, one for each GPU. Tensors are split along `dim`; other values are equal in each part.

    Tuples, named tuples, lists and dicts are traversed. There are fewer parts than GPUs if a tensor has fewer chunks
    (see `torch.chunk`); the tensor with the fewest chunks decides.

    Returns:
        A tuple for a tensor, a list for anything else.
    """
    if isinstance(inputs, Tensor):
        return Scatter.apply(target_gpus, None, dim, inputs)
    if not isinstance(inputs, tuple | list | dict) or not inputs:
        return [inputs for _ in target_gpus]
    members = inputs.items() if isinstance(inputs, dict) else inputs
    parts = zip(*[scatter(member, target_gpus, dim) for member in members], strict=False)
    if _is_namedtuple(inputs):
        return [type(inputs)(*part) for part in parts]
    if isinstance(inputs, tuple):
        return list(parts)
    kind = type(inputs) if isinstance(inputs, dict) else list
    return [kind(part) for part in parts]


def scatter_kwargs(
    inputs: Sequence[Any], kwargs: Mapping[str, Any] | None, target_gpus: Sequence[Any], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Return the parts of a call's arguments for each GPU: a tuple of positional arguments and one of keyword
    arguments.
    """
    parts = list(scatter(inputs, target_gpus, dim)) if inputs else []
    keywords = list(scatter(kwargs, target_gpus, dim)) if kwargs else []
    if len(parts) < len(keywords):
        parts += [()] * (len(keywords) - len(parts))
    elif len(keywords) < len(
        inputs
    ):  # PyTorch's condition; otherwise parallel_apply refuses lists of different lengths
        keywords += [{} for _ in range(len(parts) - len(keywords))]
    return tuple(parts), tuple(keywords)


def gather(outputs: Any, target_device: Any, dim: int = 0) -> Any:
    """Combine the results of several GPUs on one device. Tensors are concatenated along `dim`.

    Args:
        outputs: For each GPU a tensor, None, or a dict or sequence of such, with equal structure.
        target_device: torch.device, int or "cpu".

    Raises:
        ValueError: If dicts or sequences have different lengths.
        TypeError: If a member has another type.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return Gather.apply(target_device, dim, *outputs)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(output) != len(first) for output in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)([(key, gather([o[key] for o in outputs], target_device, dim)) for key in first])
    if isinstance(first, str) or not isinstance(first, Iterable):
        raise TypeError(
            f"gather expects tensors, None, and dicts and sequences of them, but got {type(first).__name__}"
        )
    members = [gather(member, target_device, dim) for member in zip(*outputs, strict=True)]
    return type(first)._make(members) if _is_namedtuple(first) else type(first)(members)  # type: ignore[attr-defined, call-arg]


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_asdict") and hasattr(value, "_fields")
