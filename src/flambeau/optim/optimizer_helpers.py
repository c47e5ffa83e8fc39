"""Helpers of PyTorch's optimizers that optimizers of other packages import from `torch.optim.optimizer`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from flambeau.core.dtype import dtype, float32, float64
from flambeau.tensor.arguments.public import functions as public
from flambeau.tensor.promotion import get_default_dtype
from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""What an optimizer takes as its parameters."""

_SWAP = "swap_in_optimizer_params_and_state"
_FOREACH, _FUSED = ["cuda"], ["cuda", "cpu"]  # types of devices
_params_doc = "params (iterable): parameters, (name, parameter) pairs, or dicts that each define a group"
_foreach_doc = (
    "foreach (bool, optional): whether each operation is one call for all parameters (default: None)"
)
_fused_doc = (
    "fused (bool, optional): whether a step is one kernel for each group of parameters (default: None)"
)
_capturable_doc = "capturable (bool, optional): whether CUDA graphs may capture a step (default: False)"
_differentiable_doc = "differentiable (bool, optional): whether autograd records a step (default: False)"
_maximize_doc = "maximize (bool, optional): maximize the objective instead of minimizing it (default: False)"


def _get_value(x: Any) -> Any:
    return x.item() if isinstance(x, Tensor) else x


def _stack_if_compiling(x: Any) -> Any:
    return x  # a compiled step runs its Python code


def _disable_dynamo_if_unsupported(single_tensor_fn: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Return a decorator that returns its function: steps run their Python code, compiled or not."""
    return lambda func: func


def _view_as_real(params: list[Tensor], *state_and_grads: list[Tensor]) -> None:
    """Replace complex parameters and their state by real views, in these lists."""
    for index, param in enumerate(params):
        if param.is_complex():
            for tensors in (params, *state_and_grads):
                tensors[index] = public["view_as_real"](tensors[index])


def _to_scalar(x: Any) -> Any:
    return x.squeeze() if isinstance(x, Tensor) and x.dim() else x


def _get_scalar_dtype(is_fused: bool | None = None) -> dtype:
    """Return the dtype of step counts."""
    return float64 if not is_fused and get_default_dtype() is float64 else float32


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """Return the types of devices whose graphs capture a step."""
    return ["cuda"]


def _default_to_fused_or_foreach(
    params: Sequence[Tensor | None], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Return whether a step defaults to fused kernels and to functions of lists.

    Args:
        params: The parameters; None for one that is absent.
        differentiable: True if autograd records the step, which neither supports.
        use_fused: True if fused kernels are an option.
    """
    there = [p for p in params if p is not None]
    if differentiable or not all(hasattr(type(p), "meta") for p in there):
        return False, False
    fused = use_fused and all(p.is_floating_point() and p.device.type in _FUSED for p in there)
    return fused, not fused and all(p.device.type in _FOREACH for p in there)


def _device_dtype_check_for_fused(p: Tensor, cuda_unsupported: bool = False) -> None:
    """Raise RuntimeError if a fused step does not support a parameter."""
    devices = [kind for kind in _FUSED if not (cuda_unsupported and kind == "cuda")]
    if not (p.device.type in devices and p.is_floating_point()):
        raise RuntimeError(
            "`fused=True` requires all the params to be floating point Tensors of supported devices: "
            f"{devices} but {p.dtype} and {p.device.type}"
        )


@contextmanager
def swap_in_optimizer_params_and_state(
    optimizer: Any, swapin_parameters: dict[str, Tensor], swapin_optim_state: dict[str, Any]
) -> Iterator[None]:
    """Give an optimizer other parameters and state; leaving the block restores its own.

    The optimizer changes the given tensors in place. Entries that it adds to a state are not added to the given one.

    Args:
        swapin_parameters: Tensors in the order of the optimizer's parameters.
        swapin_optim_state: A result of `state_dict()` of an optimizer with as many groups and parameters.

    Raises:
        RuntimeError: If the optimizer has no state yet, or the given parameters and state do not fit it.
    """
    state, groups = _fitting_state(optimizer, swapin_optim_state)
    given = iter(swapin_parameters.values())
    params = [[p for _, p in zip(group["params"], given, strict=False)] for group in groups]
    if any(len(taken) < len(group["params"]) for taken, group in zip(params, groups, strict=True)):
        _refuse(
            f"the explicit parameter state to match optimizer.param_groups ordering, but got {len(swapin_parameters)} "
            f"tensors for {sum(len(group['params']) for group in groups)} parameters"
        )
    own_state, own_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    try:
        optimizer.state = defaultdict(dict)
        for live, group, taken in zip(optimizer.param_groups, groups, params, strict=True):
            live.update(group, params=taken)
            for p, number in zip(taken, group["params"], strict=True):
                optimizer.state[p] = dict(state.get(number, {}))
        yield
    finally:
        optimizer.state = own_state
        for live, group in zip(optimizer.param_groups, own_groups, strict=True):
            live.clear()
            live.update(group)


def _fitting_state(optimizer: Any, given: Any) -> tuple[Mapping[Any, Any], list[dict[str, Any]]]:
    """Return the states by number and the groups of a state_dict that fits the optimizer."""
    if not optimizer.state:
        _refuse("initialized optimizer state")
    if not isinstance(given, dict):
        _refuse(f"a DCP-style optimizer state_dict, but got {type(given).__name__}")
    state, groups = given.get("state"), given.get("param_groups")
    if not isinstance(state, dict):
        _refuse(f"swapin_optim_state['state'] to be a dict, but got {type(state).__name__}")
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        _refuse(f"swapin_optim_state['param_groups'] to be a list of {len(optimizer.param_groups)} groups")
    for at, (live, group) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        if not isinstance(group, dict) or group.keys() != live.keys():
            _refuse(f"param_groups[{at}] to be a dict with the optimizer's keys {sorted(live)}")
        if not isinstance(group["params"], list) or len(group["params"]) != len(live["params"]):
            _refuse(f"param_groups[{at}]['params'] to be a list of {len(live['params'])} numbers")
    numbers = {number for group in groups for number in group["params"]}
    if extra := [key for key in state if key not in numbers]:
        _refuse(
            "swapin_optim_state['state'] to be keyed only by packed parameter ids from param_groups[*]['params']; "
            f"got extra keys {extra!r}"
        )
    return state, groups


def _refuse(what: str) -> None:
    raise RuntimeError(f"{_SWAP} requires {what}.")
