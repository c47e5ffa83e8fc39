"""`state_dict` and `load_state_dict`: the parameters and buffers of a module, by name."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flambeau.core.callsite import warn_program
from flambeau.core.errors import RaceError
from flambeau.core.handle import RemovableHandle
from flambeau.nn.modules.module_hooks import put
from flambeau.nn.parameter import Parameter, is_lazy
from flambeau.tensor.tensor import Tensor

if TYPE_CHECKING:
    from flambeau.nn.modules.module import Module

EXTRA = "_extra_state"


class _IncompatibleKeys(NamedTuple("IncompatibleKeys", [("missing_keys", list), ("unexpected_keys", list)])):
    """The keys that `load_state_dict` found missing or unexpected."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


class Stateful:
    """The part of `Module` that saves and loads its state: `state_dict` and `load_state_dict`."""

    _version: int = 1
    """The version of the state's layout; `state_dict` saves it as metadata."""

    if TYPE_CHECKING:
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]
        _modules: dict[str, Module | None]
        _non_persistent_buffers_set: set[str]
        _state_dict_hooks: dict[int, Any]
        _state_dict_pre_hooks: dict[int, Any]
        _load_state_dict_pre_hooks: dict[int, Any]
        _load_state_dict_post_hooks: dict[int, Any]

    # -- hooks ------------------------------------------------------------------------------------------

    def _register_state_dict_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict`; its result replaces the dict."""
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was "
                "previously registered via register_state_dict_post_hook"
            )
        return put(self._state_dict_hooks, hook)

    def register_state_dict_post_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict`; it may change the dict."""
        hook._from_public_api = True
        return put(self._state_dict_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before `state_dict`."""
        return put(self._state_dict_pre_hooks, hook)

    def _register_load_state_dict_pre_hook(self, hook: Any, with_module: bool = False) -> RemovableHandle:
        return put(self._load_state_dict_pre_hooks, partial(hook, self) if with_module else hook)

    def register_load_state_dict_pre_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`
        before the module loads its state from `state_dict`.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may change the keys in place."""
        return put(self._load_state_dict_post_hooks, hook)

    # -- giving -----------------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """Return additional state. A module that overrides this overrides `set_extra_state` too."""
        raise RuntimeError("Module.get_extra_state() was called, but this module does not override it")

    def set_extra_state(self, state: Any) -> None:
        """Restore the state that `get_extra_state` returned."""
        raise RuntimeError("Module.set_extra_state() was called, but this module does not override it")

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """Return all parameters and persistent buffers by their dotted names.

        Args:
            destination: A dict to which they are added.
            prefix: Prefix of each name.
            keep_vars: Return the parameters themselves instead of detached tensors.
        """
        if args:
            warnings.warn(
                "Positional args are being deprecated, use kwargs instead. Refer to "
                "https://pytorch.org/docs/main/generated/torch.nn.Module.html#torch.nn.Module.state_dict for details.",
                FutureWarning,
                stacklevel=2,
            )
            given = dict(zip(("destination", "prefix", "keep_vars"), args, strict=False))
            destination = given["destination"] if destination is None else destination
            prefix, keep_vars = given.get("prefix", prefix), given.get("keep_vars", keep_vars)
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return self._after_state_dict(destination, prefix, metadata)

    def _after_state_dict(self, destination: Any, prefix: str, metadata: dict[str, Any]) -> Any:
        for hook in self._state_dict_hooks.values():
            changed = hook(self, destination, prefix, metadata)
            if changed is None:
                continue
            if getattr(hook, "_from_public_api", False):
                raise RuntimeError("state_dict post-hook must return None")
            destination = changed
        return destination

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Add this module's own state, without its submodules', to `destination`."""
        for name, value in self._own_state():
            destination[prefix + name] = value if keep_vars or is_lazy(value) else value.detach()
        if type(self).get_extra_state is not Stateful.get_extra_state:
            destination[prefix + EXTRA] = self.get_extra_state()

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and values of the parameters and persistent buffers of this module alone."""
        for name, param in self._parameters.items():
            if param is not None:
                yield name, param
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent_buffers_set:
                yield name, buffer

    # -- taking -----------------------------------------------------------------------------------------

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Load parameters and buffers from a dict. Returns the missing and the unexpected keys.

        Args:
            strict: Raise RuntimeError if keys are missing or unexpected.
            assign: Make the dict's tensors the parameters and buffers instead of copying their values.

        Raises:
            RuntimeError: If a tensor has another shape; all other tensors are loaded first.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        given = OrderedDict(state_dict)
        metadata = getattr(state_dict, "_metadata", None)
        if metadata is not None:
            given._metadata = metadata  # type: ignore[attr-defined]

        def load(module: Any, local: Any, prefix: str) -> None:
            known = {} if metadata is None else metadata.get(prefix[:-1], {})
            if assign:
                known["assign_to_params_buffers"] = assign
            module._load_from_state_dict(local, prefix, known, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    start = f"{prefix}{name}."
                    load(child, {k: v for k, v in local.items() if k.startswith(start)}, start)
            keys = _IncompatibleKeys(missing, unexpected)
            for hook in module._load_state_dict_post_hooks.values():
                if hook(module, keys) is not None:
                    raise AssertionError(
                        "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                        "values, if incompatible_keys need to be modified, it should be done inplace."
                    )

        load(self, given, "")
        if strict:
            errors[:0] = _complaints(missing, unexpected)
        if errors:
            listing = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{listing}")
        return _IncompatibleKeys(missing, unexpected)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Load this module's own state, without its submodules'. Errors are appended to the lists."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        assign = local_metadata.get("assign_to_params_buffers", False)
        own = dict(self._own_state())
        for name, param in own.items():
            key = prefix + name
            if key in state_dict:
                self._take(name, param, key, state_dict[key], assign, error_msgs)
            elif strict:
                missing_keys.append(key)
        key = prefix + EXTRA
        takes_extra = type(self).set_extra_state is not Stateful.set_extra_state
        if takes_extra and key in state_dict:
            self.set_extra_state(state_dict[key])
        elif strict and takes_extra != (key in state_dict):
            (missing_keys if takes_extra else unexpected_keys).append(key)
        if strict:
            unexpected_keys += [
                k
                for k in state_dict
                if k.startswith(prefix) and k != key and not self._knows(k[len(prefix) :], own)
            ]

    def _knows(self, name: str, own: Mapping[str, Any]) -> bool:
        first, dot, _ = name.partition(".")
        return first in (self._modules if dot else own)

    def _take(
        self, name: str, param: Tensor, key: str, given: Any, assign: bool, error_msgs: list[str]
    ) -> None:
        if not isinstance(given, Tensor):
            error_msgs.append(
                f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from '
                f"checkpoint but received {type(given)}"
            )
            return
        lazy = is_lazy(param)
        if not lazy and param.dim() == 0 and given.dim() == 1:
            given = given[0]  # as PyTorch 0.3 saved numbers
        if not lazy and given.shape != param.shape:
            error_msgs.append(
                f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, the shape in "
                f"current model is {param.shape}."
            )
            return
        if not lazy and param.is_meta and not given.is_meta and not assign:
            warn_program(
                f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter in the "
                "current model, which is a no-op. (Did you mean to pass `assign=True` to assign items in the state "
                "dictionary to their corresponding key in the module instead of copying them in place?)",
                UserWarning,
            )
        try:
            if assign:
                self._assign(name, param, given)
            else:
                param.detach().copy_(given)
        except RaceError:
            raise
        except Exception as error:
            error_msgs.append(
                f'While copying the parameter named "{key}", whose dimensions in the model are {param.size()} and '
                f"whose dimensions in the checkpoint are {given.size()}, an exception occurred : {error.args}."
            )

    def _assign(self, name: str, param: Tensor, given: Tensor) -> None:
        if isinstance(param, Parameter):
            if isinstance(given, Parameter):
                given.requires_grad_(param.requires_grad)
            else:
                given = Parameter(given, param.requires_grad)
        setattr(self, name, given)


def _complaints(missing: list[str], unexpected: list[str]) -> list[str]:
    def list_keys(what: str, keys: list[str]) -> list[str]:
        quoted = ", ".join([f'"{k}"' for k in keys])
        return [f"{what} key(s) in state_dict: {quoted}. "] if keys else []

    return list_keys("Missing", missing) + list_keys("Unexpected", unexpected)
