"""`Optimizer`: parameters in groups, states, hooks, checkpoints. Subclasses define a step."""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import Any, get_type_hints

from flambeau.core.brief import brief
from flambeau.core.dtype import float32
from flambeau.core.handle import RemovableHandle
from flambeau.optim.optimizer_helpers import (  # noqa: F401
    ParamsT,
    _capturable_doc,
    _default_to_fused_or_foreach,
    _device_dtype_check_for_fused,
    _differentiable_doc,
    _disable_dynamo_if_unsupported,
    _foreach_doc,
    _fused_doc,
    _get_capturable_supported_devices,
    _get_scalar_dtype,
    _get_value,
    _maximize_doc,
    _params_doc,
    _stack_if_compiling,
    _to_scalar,
    _view_as_real,
)
from flambeau.runtime.hooks import annotations
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.tensor_groups import group_by_device_and_dtype

Hooks = OrderedDict[int, Callable[..., Any]]
StateDict = dict[str, Any]

every_step_pre_hooks: Hooks = OrderedDict()
every_step_post_hooks: Hooks = OrderedDict()


class _Required:
    """The default of an option that each group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` before each step of every optimizer."""
    return _register_hook(every_step_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` after each step of every optimizer."""
    return _register_hook(every_step_post_hooks, hook)


def _register_hook(hooks: Hooks, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


class Optimizer:
    """The base of the optimizers.

    Args:
        params: Tensors, (name, tensor) pairs, or dicts that each define a group: its "params" and its options.
        defaults: Options of groups that do not define them.

    Raises:
        TypeError: If `params` is not an iterable of tensors or groups.
        ValueError: If it is empty, a tensor is not a leaf, or a tensor is in two groups.
    """

    param_groups: list[dict[str, Any]]
    state: defaultdict[Any, Any]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self._make_hooks()
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                + _typename(params)
            )
        self.state = defaultdict(dict)
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __init_subclass__(cls, **given: Any) -> None:
        """Wrap the `step` of each subclass, so that it runs the hooks."""
        super().__init_subclass__(**given)
        if "step" in cls.__dict__:
            setattr(cls, "step", Optimizer.profile_hook_step(cls.step))  # noqa: B010 (a method may be assigned to)

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines += ["", f"Parameter Group {i}"] if i else [f"Parameter Group {i}"]
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    # -- a step -----------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter by its gradient. A closure evaluates the model again and returns the loss."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters; with `set_to_none=False` fill them with zeros."""
        if annotations.has_subscribers():
            with _StepRange(self, "zero_grad"):
                self._zero_grad(set_to_none)
        else:
            self._zero_grad(set_to_none)

    def _zero_grad(self, set_to_none: bool) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                if set_to_none:
                    p.grad = None
                    continue
                if grad.grad_fn is not None:
                    grad.detach_()
                else:
                    grad.requires_grad_(False)
                grad.zero_()

    def _patch_step_function(self) -> None:
        """Make the class's `step` run the hooks. Optimizers that wrap another one call this in place of `__init__`."""
        self._zero_grad_profile_name = f"Optimizer.zero_grad#{type(self).__name__}.zero_grad"
        setattr(type(self), "step", self.profile_hook_step(type(self).step))  # noqa: B010

    @staticmethod
    def _group_tensors_by_device_and_dtype(tensorlistlist: Any, with_indices: bool = False) -> Any:
        return group_by_device_and_dtype(tensorlistlist, with_indices)

    @staticmethod
    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step function that runs hooks before and after, as one range of profiles. A pre-hook may replace
        arguments.
        """
        if getattr(step, "hooked", False):
            return step

        @functools.wraps(step)
        def hooked_step(*args: Any, **kwargs: Any) -> Any:
            if "_optimizer_step_pre_hooks" not in args[0].__dict__:
                return step(
                    *args, **kwargs
                )  # an optimizer that wraps another one, whose `__init__` was never called
            if not annotations.has_subscribers():
                return run(*args, **kwargs)
            with _StepRange(args[0], "step"):
                return run(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            self, *_ = args
            for hook in chain(every_step_pre_hooks.values(), self._optimizer_step_pre_hooks.values()):
                result = hook(self, args, kwargs)
                if result is None:
                    continue
                if not (isinstance(result, tuple) and len(result) == 2):
                    raise RuntimeError(
                        f"{step} must return None or a tuple of (new_args, new_kwargs), but got {result}."
                    )
                args, kwargs = result
            out = step(*args, **kwargs)
            for hook in chain(self._optimizer_step_post_hooks.values(), every_step_post_hooks.values()):
                hook(self, args, kwargs)
            return out

        hooked_step.__dict__["hooked"] = True
        return hooked_step

    # -- groups -----------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: a dict of "params" and options. An error leaves the optimizer unchanged."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        _take_params(param_group)
        for p in param_group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(
                    "optimizer can only optimize Tensors, but one of the params is " + _typename(p)
                )
            if not (self.defaults.get("differentiable") or p.is_leaf or p.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter {name}"
                )
            param_group.setdefault(name, default)
        params = param_group["params"]
        if len(params) != len(set(params)):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an "
                "error; see github.com/pytorch/pytorch/issues/40967 for more information",
                stacklevel=3,
            )
        if self.param_groups and ("param_names" in param_group) != ("param_names" in self.param_groups[0]):
            which = "with names" if "param_names" in param_group else "without names"
            raise ValueError(
                "all optimizer param groups should be with/without names. "
                f"cannot add param group {which} to the optimizer"
            )
        if not set(params).isdisjoint(chain.from_iterable(g["params"] for g in self.param_groups)):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """{"state": states by the parameter's number, "param_groups": options, with numbers for parameters}."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [numbers.setdefault(id(p), len(numbers)) for p in group["params"]]
            groups.append(packed)
        states = {(numbers[id(k)] if isinstance(k, Tensor) else k): v for k, v in self.state.items()}
        result: StateDict = {"state": states, "param_groups": groups}
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the state that `state_dict` returned. States get dtype and device of their parameters.

        Raises:
            ValueError: If groups do not match; nothing has changed then.
        """
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups, saved = self.param_groups, deepcopy(state_dict["param_groups"])
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, saved, strict=True)):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        owners = {
            number: (p, group)
            for group, other in zip(groups, saved, strict=True)
            for number, p in zip(other["params"], group["params"], strict=True)
        }
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key in owners:
                p, group = owners[key]
                state[p] = _fit_state(p, value, group)
            else:
                state[key] = value
        for group, other in zip(groups, saved, strict=True):
            other["params"] = group["params"]
            if "param_names" in group and "param_names" not in other:
                other["param_names"] = group["param_names"]
        self.__setstate__({"state": state, "param_groups": saved})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_optimizer_step_pre_hooks" not in self.__dict__:
            self._make_hooks()
        for group in self.param_groups:
            for name, default in self.defaults.items():  # a checkpoint older than an option
                group.setdefault(name, default)

    # -- hooks ------------------------------------------------------------------------------------------------

    def _make_hooks(self) -> None:
        self._optimizer_step_pre_hooks: Hooks = OrderedDict()
        self._optimizer_step_post_hooks: Hooks = OrderedDict()
        self._optimizer_state_dict_pre_hooks: Hooks = OrderedDict()
        self._optimizer_state_dict_post_hooks: Hooks = OrderedDict()
        self._optimizer_load_state_dict_pre_hooks: Hooks = OrderedDict()
        self._optimizer_load_state_dict_post_hooks: Hooks = OrderedDict()

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step; it may return other (args, kwargs)."""
        return _register_hook(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return _register_hook(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` before `state_dict` creates its dict."""
        return _register_hook(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after `state_dict`; a result that is not None replaces the dict."""
        return _register_hook(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before `load_state_dict`; a result that is not None replaces the dict."""
        return _register_hook(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` after `load_state_dict`."""
        return _register_hook(self._optimizer_load_state_dict_post_hooks, hook, prepend)


class _StepRange:
    """A range of profiles and traces for an optimizer's step: "Optimizer.step#SGD.step"."""

    def __init__(self, optimizer: Optimizer, what: str) -> None:
        self._text = f"Optimizer.{what}#{type(optimizer).__name__}.{what}"

    def __enter__(self) -> None:
        annotations.push(self._text)

    def __exit__(self, *error: object) -> None:
        annotations.pop()


def with_values(grad: Any, values: Any) -> Any:
    """Return a sparse tensor with other values at the indices of a coalesced sparse gradient."""
    return functions["sparse_coo_tensor"](grad.indices(), values, grad.shape, is_coalesced=True)


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Call a step's closure with recording enabled and return its result."""
    if closure is None:
        return None
    with recording(True):
        return closure()


def without_recording(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that records nothing, unless its optimizer is differentiable."""

    @functools.wraps(step)
    def quiet_step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with recording(bool(self.defaults.get("differentiable"))):
            return step(self, *args, **kwargs)

    return quiet_step


_use_grad_for_differentiable = without_recording  # PyTorch's name, which other packages import


def check_lr(lr: Any, message: str = "Invalid learning rate: {}") -> None:
    """Raise ValueError for a tensor of several elements or a negative rate."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(message.format(lr))


def check_least(value: Any, what: str) -> None:
    """Raise ValueError for a negative option."""
    if not value >= 0.0:
        raise ValueError(f"Invalid {what} value: {value}")


def check_betas(betas: Any) -> None:
    """Raise ValueError for a decay outside [0, 1), or TypeError unless there are two."""
    if not isinstance(betas, tuple | list) or len(betas) < 2:
        raise TypeError(f"betas must be a tuple of two floats, but got {brief(betas)}")
    for i in (0, 1):
        if not 0.0 <= betas[i] < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {betas[i]}")


def _take_params(group: dict[str, Any]) -> None:
    """Convert a group's parameters to a list, in place, and store their names separately if there are names."""
    params = group["params"]
    if isinstance(params, Tensor):
        group["params"] = [params]
        return
    if isinstance(params, set):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets "
            "will change between runs. Please use a list instead."
        )
    listed = list(params)
    named = [x for x in listed if isinstance(x, tuple)]
    if named and len(named) != len(listed):
        raise ValueError("all optimizer params should be with/without names. Some param names are missing")
    group["params"] = [x[1] for x in named] if named else listed
    if named:
        group["param_names"] = [x[0] for x in named]


def _fit_state(p: Tensor, value: Any, group: dict[str, Any], key: Any = None) -> Any:
    """Return a saved state converted to its parameter's dtype and device, except the step count."""
    if isinstance(value, Tensor):
        if key == "step":
            on_device = group.get("capturable") or group.get("fused")
            return value.to(dtype=float32, device=p.device) if on_device else value
        if p.is_floating_point():
            return value.to(dtype=p.dtype, device=p.device)
        return value.to(device=p.device)
    if isinstance(value, dict):
        return {k: _fit_state(p, v, group, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_fit_state(p, v, group) for v in value])
    return value


def _typename(x: Any) -> str:
    """Return PyTorch's name of a value's type."""
    if isinstance(x, Tensor):
        return x.type()
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Programs read these annotations from instances and evaluate them in their own namespaces.
Optimizer.__annotations__ = get_type_hints(Optimizer)
