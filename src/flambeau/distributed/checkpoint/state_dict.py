"""torch.distributed.checkpoint.state_dict: state dicts of modules and optimizers without the names of wrappers.

DistributedDataParallel, compiled modules and checkpoint wrappers add parts to the names of parameters; optimizers
number their parameters. These functions name each parameter as the module inside the wrappers does. Flambeau has no
sharded modules, so each rank has whole tensors, and nothing is gathered.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flambeau.core.absent import absent_function
from flambeau.core.device import device as Device
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.process_groups import get_rank, is_initialized
from flambeau.nn.compilation import OptimizedModule
from flambeau.nn.modules.module import Module, _IncompatibleKeys
from flambeau.nn.parallel.distributed import DistributedDataParallel
from flambeau.optim import Optimizer
from flambeau.tape.mode import recording
from flambeau.tensor.functions.creation import scalar_tensor, zeros_like
from flambeau.tensor.tensor import Tensor

__all__ = [
    "StateDictOptions",
    "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict",
    "set_optimizer_state_dict", "set_state_dict",
]  # fmt: skip

PrimitiveType = Any
ValueType = Any
DictValueType = dict[str, Any]
ListDictValueType = list[dict[str, Any]]
OptimizerStateType = dict[str, Any]
FQNS_T = set[str]

_HERE = "torch.distributed.checkpoint.state_dict"
explain_absent_names(globals(), _HERE)

_ADVICE = "Use get_state_dict and set_state_dict."
_patch_model_state_dict = absent_function(_HERE, "_patch_model_state_dict", _ADVICE)
_patch_optimizer_state_dict = absent_function(_HERE, "_patch_optimizer_state_dict", _ADVICE)


@dataclass
class StateDictOptions:
    """The options of the functions of this module.

    Attributes:
        full_state_dict: Whole tensors, as Flambeau's always are. Setting a state keeps own values of absent names.
        cpu_offload: Tensors on the CPU; with `full_state_dict` and several ranks, only rank 0 gets any.
        ignore_frozen_params: Leave out parameters that do not require gradients.
        keep_submodule_prefixes: Names of `submodules` begin with the submodule's name.
        strict: Raise for missing and unexpected names.
        broadcast_from_rank0: Not supported.
        flatten_optimizer_state_dict: One dictionary of names such as "state.weight.exp_avg".
        dsd_fqn_modifiers: The method of modules that rename their parts, which is not supported.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


def get_model_state_dict(
    model: Module, *, submodules: set[Module] | None = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Return the state dict of a module, with names that wrappers do not change.

    Raises:
        RuntimeError: If the module has no state.
        ValueError: If `options` contradict each other.
        NotSupportedError: For a broadcast, and for modules that rename their parts.
    """
    options = _check_options(model, options)
    state = model.state_dict()
    for key in list(state):
        if (name := _plain_name(model, key)) != key:
            state[name] = state.pop(key)
    if submodules:
        state = _of_submodules(model, state, submodules, options)
    if options.ignore_frozen_params:
        for key, parameter in model.named_parameters():
            if not parameter.requires_grad:
                state.pop(_plain_name(model, key), None)
    if not (state or submodules or options.ignore_frozen_params):
        _require_model_state(state, options)
    return _move_state(state, options)


def get_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """Return the joint state of optimizers of a module's parameters, by the names of the parameters.

    An optimizer without state gets it by a step with gradients of zero and a learning rate of zero.

    Raises:
        RuntimeError: Without optimizers.
        KeyError: If an optimizer has a parameter that the module does not have.
        NotImplementedError: If a flattened state has something else than tensors and numbers.
    """
    options = _check_options(model, options, submodules)
    joint: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _tuple_of(optimizers, required=True):
        names = [_names_of(model, p)[0] for group in optimizer.param_groups for p in group["params"]]
        _create_state(optimizer)
        state = optimizer.state_dict()
        joint["state"].update({names[number]: value for number, value in state["state"].items()})
        for group in state["param_groups"]:
            joint["param_groups"].append(group | {"params": [names[n] for n in group["params"]]})
    return _move_state(_flatten_state(joint) if options.flatten_optimizer_state_dict else joint, options)


def get_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state dicts of a module and of its optimizers, the second one empty without optimizers."""
    optimizers = _tuple_of(optimizers)
    state = get_model_state_dict(model, submodules=submodules, options=options)
    if not optimizers:
        return state, {}
    return state, get_optimizer_state_dict(model, optimizers, options=options)


def set_model_state_dict(
    model: Module, model_state_dict: dict[str, Any], *, options: StateDictOptions | None = None
) -> _IncompatibleKeys:
    """Load a state dict with names as `get_model_state_dict` returns them. The dictionary itself does not change.

    Returns:
        The missing and the unexpected names.

    Raises:
        RuntimeError: If `options.strict` and names or shapes do not agree, or if the dictionary is empty.
        ValueError: If the whole state of a module on several devices is set.
    """
    options = _check_options(model, options)
    if any(isinstance(key, Module) for key in model_state_dict):
        raise NotSupportedError(
            "set_model_state_dict got a dictionary from modules to state dicts, a form that PyTorch deprecated. "
            "Name the parameters as get_model_state_dict does."
        )
    if not model_state_dict:
        _require_model_state(model_state_dict, options)
        return _IncompatibleKeys({}, {})  # type: ignore[arg-type]
    state, own = copy.copy(model_state_dict), model.state_dict()
    for key in own:
        name = _plain_name(model, key)
        if name in state:
            state[key] = state.pop(name)
        elif name != key and options.strict:
            raise RuntimeError(f"Missing key: {name}.")
    assign = options.full_state_dict and _complete(state, own)
    return model.load_state_dict(state, strict=options.strict, assign=assign)


def set_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    optim_state_dict: dict[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Load what `get_optimizer_state_dict` returned for all of these optimizers, flattened or not.

    Raises:
        RuntimeError: Without optimizers or states, and if `options.strict` and a parameter has no state.
        ValueError: If groups without parameters are ambiguous.
    """
    options = _check_options(model, options)
    optimizers = _tuple_of(optimizers, required=True)
    if not optim_state_dict:
        raise RuntimeError(
            "The option indicates that model state_dict is required to save, or load but optim state_dict is empty. "
            f"{optim_state_dict}"
        )
    for optimizer in optimizers:
        _create_state(optimizer)
        select = _part_of if "state" in optim_state_dict else _unflatten_state
        optimizer.load_state_dict(select(model, optimizer, optim_state_dict, options))


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: dict[str, Any],
    optim_state_dict: dict[str, Any],
    options: StateDictOptions | None = None,
) -> _IncompatibleKeys:
    """Load the state dicts of a module and of its optimizers. See `set_model_state_dict` for the result."""
    optimizers = _tuple_of(optimizers)
    if optimizers:
        set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return set_model_state_dict(model, model_state_dict, options=options)


def _check_options(
    model: Module, options: StateDictOptions | None, submodules: set[Module] | None = None
) -> StateDictOptions:
    """Return the options, or the default ones."""
    options = options or StateDictOptions()
    if submodules:
        _warn_of_submodules()
    if options.broadcast_from_rank0:
        if not options.full_state_dict:
            raise ValueError("full_state_dict must be True when broadcast_from_rank0 is True.")
        raise NotSupportedError(
            "StateDictOptions(broadcast_from_rank0=True) is not supported: Flambeau broadcasts no state dicts. "
            "Load the file on each rank, or call torch.distributed.broadcast for each tensor."
        )
    if any(hasattr(module, options.dsd_fqn_modifiers) for module in model.modules()):
        raise NotSupportedError(
            f"A module has the method {options.dsd_fqn_modifiers}, which renames its parts; Flambeau does not follow "
            "it. Use the module's own state_dict() and load_state_dict()."
        )
    return options


def _warn_of_submodules() -> None:
    warnings.warn(
        "Getting submodules only model/optim state_dict is deprecated and will be removed in 2.5. This feature can be "
        "achieved by manually filtering out the state_dict returned from get_state_dict.",
        FutureWarning,
        stacklevel=4,
    )


def _tuple_of(optimizers: Optimizer | Iterable[Optimizer], required: bool = False) -> tuple[Optimizer, ...]:
    several = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
    if required and not several:
        raise RuntimeError("Optimizers are not passed in but optim_only is set to True.")
    return several


def _require_model_state(state: dict[str, Any], options: StateDictOptions) -> None:
    """Raise RuntimeError for an empty state dict, which `options` may permit."""
    if (
        options.strict
        and not options.ignore_frozen_params
        and not (options.cpu_offload and options.full_state_dict)
    ):
        raise RuntimeError(
            "The option indicates that model state_dict is required to save or load, but model state_dict is empty."
        )


def _plain_name(model: Any, key: str) -> str:
    """Return the name of a parameter or buffer without the parts that wrappers add."""
    module, parts = model, []
    for part in key.split("."):
        added = (
            (part == "module" and isinstance(module, DistributedDataParallel))
            or (part == "_orig_mod" and isinstance(module, OptimizedModule))
            or part == "_checkpoint_wrapped_module"
        )
        if not added:
            parts.append(part)
        module = getattr(module, part, None)
    return ".".join(parts)


def _names_of(model: Module, parameter: Tensor) -> list[str]:
    """Return the names of a parameter, of which a shared one has several."""
    found = model.named_parameters(remove_duplicate=False)
    names = [_plain_name(model, key) for key, own in found if own is parameter]
    if not names:
        raise KeyError(
            f"an optimizer has a parameter of shape {tuple(parameter.shape)} that the module does not have"
        )
    return names


def _of_submodules(
    model: Module, state: dict[str, Any], submodules: set[Module], options: StateDictOptions
) -> dict[str, Any]:
    _warn_of_submodules()
    prefixes = [
        f"{_plain_name(model, name)}." for name, module in model.named_modules() if module in submodules
    ]
    return {
        name if options.keep_submodule_prefixes else name.removeprefix(prefix): value
        for name, value in state.items()
        for prefix in prefixes
        if name.startswith(prefix)
    }


def _move_state(state: dict[str, Any], options: StateDictOptions) -> dict[str, Any]:
    """Return a state dict on the devices and ranks that `options` choose."""
    if not options.cpu_offload:
        return state
    if options.full_state_dict and is_initialized() and get_rank() != 0:
        return {}
    moved: dict[str, Any] = _to_cpu(state)
    return moved


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(inner) for key, inner in value.items()}
    return type(value)(map(_to_cpu, value)) if type(value) in (list, tuple) else value


def _complete(state: dict[str, Any], own: dict[str, Any]) -> bool:
    """Add the module's own values of absent names, and return True if tensors on the meta device are to be replaced."""
    devices = {value.device for value in own.values() if isinstance(value, Tensor) and value.dim()}
    replaced = Device("meta") in devices
    devices.discard(Device("meta"))
    if len(devices) > 1:
        raise ValueError("Multiple devices found")
    for device in devices if replaced else ():
        state.update({key: value.to(device) for key, value in state.items() if isinstance(value, Tensor)})
    for key, value in own.items():
        state.setdefault(key, value)
    return replaced


def _create_state(optimizer: Optimizer) -> None:
    """Make an optimizer create its state by a step that changes no parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if optimizer.state or any(p.grad is not None for p in parameters):
        return
    rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
    with recording(False):
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.grad = zeros_like(parameter)
        for group, rate in rates:
            group["lr"] = scalar_tensor(0.0) if isinstance(rate, Tensor) else 0.0
        try:
            optimizer.step(closure=None)
        finally:
            for group, rate in rates:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)


def _flatten_state(joint: dict[str, Any]) -> dict[str, Any]:
    """Return {"state.NAME.KEY": value, "param_groups.NAME.KEY": value}."""
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}", inner)
        elif isinstance(value, Tensor | int | float):
            flat[prefix] = value
        else:
            raise NotImplementedError(
                f"Flattening optimizer state_dict only supports tensor, int, float, dict states now. Type is "
                f"{type(value)}."
            )

    add("state", joint["state"])
    for group in joint["param_groups"]:
        for name in group["params"]:
            flat.update(
                {f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"}
            )
    return flat


def _unflatten_state(
    model: Module, optimizer: Optimizer, flat: dict[str, Any], _: StateDictOptions
) -> dict[str, Any]:
    """Return the state dict of an optimizer from a flattened one.

    Raises:
        KeyError: If a setting or a state is absent, where PyTorch loads an empty dictionary.
    """
    state: dict[str, Any] = {}
    groups = []
    for group in optimizer.param_groups:
        keys = [key for key in group if key != "params"]
        names = [
            next((n for n in own if f"param_groups.{n}.{keys[0]}" in flat), own[0])
            for own in (_names_of(model, p) for p in group["params"])
        ]
        settings = {key: flat[f"param_groups.{names[0]}.{key}"] for key in keys}
        groups.append({**settings, "params": names})
        for name, parameter in zip(names, group["params"], strict=True):
            if parameter.requires_grad:
                state[name] = {
                    key: _nest_values(flat, f"state.{name}.{key}") for key in optimizer.state[parameter]
                }
    return {"state": state, "param_groups": groups}


def _nest_values(flat: dict[str, Any], prefix: str) -> Any:
    """Return the value of a name, or the dictionary of the names below it."""
    if prefix in flat:
        return flat[prefix]
    root: dict[str, Any] = {}
    for key, value in flat.items():
        if key.startswith(f"{prefix}."):
            *outer, last = key.removeprefix(f"{prefix}.").split(".")
            place = root
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = value
    if not root:
        raise KeyError(f"the flattened state dict has neither '{prefix}' nor names that begin with it")
    return root


def _part_of(
    model: Module, optimizer: Optimizer, joint: dict[str, Any], options: StateDictOptions
) -> dict[str, Any]:
    """Return the part of a joint state dict that is of one optimizer's parameters.

    Raises:
        RuntimeError: If `options.strict` and a parameter has no state.
    """
    group_of = {name: group for group in joint["param_groups"] for name in group["params"]}
    if group_of and all(isinstance(name, int) for name in group_of):
        return joint  # an optimizer's own state dict
    state, groups = {}, []
    for group in optimizer.param_groups:
        names, settings = [], {} if group["params"] else _empty_group(optimizer, joint)
        for parameter in group["params"]:
            own = _names_of(model, parameter)
            name = next((n for n in own if n in group_of), own[0])
            names.append(name)
            settings.update(group_of.get(name, {}))
            if parameter.requires_grad and name in joint["state"]:
                state[name] = joint["state"][name]
            elif parameter.requires_grad and options.strict and joint["state"]:
                raise RuntimeError(
                    f"Missing optimizer state for parameter '{name}' in checkpoint. The parameter requires gradients "
                    "but has no saved optimizer state. To load anyway, use StateDictOptions(strict=False)."
                )
            elif options.full_state_dict and parameter in optimizer.state:
                state[name] = optimizer.state[parameter]
        groups.append(settings | {"params": names})
    return {"state": state, "param_groups": groups}


def _empty_group(optimizer: Optimizer, joint: dict[str, Any]) -> dict[str, Any]:
    """Return the only saved group without parameters.

    Raises:
        ValueError: If there is another number of them, or the groups are of several optimizers.
    """
    empty = [group for group in joint["param_groups"] if not group["params"]]
    if len(empty) != 1 or len(joint["param_groups"]) != len(optimizer.param_groups):
        raise ValueError(
            "There are param groups that have zero parameters. In such a case, DSD only support exactly one param "
            f"group with zero parameters, of one optimizer. The loaded state_dict has {len(empty)} of them, and "
            f"{len(joint['param_groups'])} groups for {len(optimizer.param_groups)}."
        )
    return dict(empty[0])
