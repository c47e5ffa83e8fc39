"""Parametrizations: a parameter or buffer that modules compute from an unconstrained tensor.

The module gets its own class with a property for the tensor, and a ModuleDict `parametrizations`. For each name it has
a `ParametrizationList` with the tensor `original`, or `original0`, `original1`, ... if there are several.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flambeau.nn.modules.container import ModuleDict, ModuleList
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tape.mode import recording
from flambeau.tensor.tensor import Tensor

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "transfer_parametrizations_and_params", "type_before_parametrizations",
]  # fmt: skip


class _Cache:
    """The parametrized tensors that are cached inside of `cached` blocks."""

    def __init__(self) -> None:
        self.depth = 0
        self.kept: dict[tuple[int, str], Tensor] = {}

    def value(self, module: Module, name: str, parametrization: Any) -> Any:
        """Return the result of the parametrization; inside of a `cached` block, the cached result."""
        if not self.depth:
            return parametrization()
        key = (id(module), name)
        if key not in self.kept:
            self.kept[key] = parametrization()
        return self.kept[key]


_cache = _Cache()


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor only once inside the block, when it is first used."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.kept.clear()


# -- the list -----------------------------------------------------------------------------------------------


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _put(target: Tensor, source: Tensor) -> None:
    """Make `target` use the memory and shape of `source`."""
    with recording(False):
        target.set_(source)


_MAY_NOT = (
    "Registering a parametrization may not change the {what} of the tensor, unless {flag} flag is enabled.\n"
)


def _check_made(made: Any, kind: Any, shape: Any, flag: str, named: tuple[str, str]) -> None:
    """Raise ValueError if a parametrization does not return a tensor of this dtype and shape."""
    if not isinstance(made, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(made).__name__}.")
    for what, before in (("dtype", kind), ("shape", shape)):
        after = getattr(made, what)
        if after != before:
            old, new = (text.format(what=what) for text in named)
            raise ValueError(_MAY_NOT.format(what=what, flag=flag) + f"{old}: {before}\n{new}: {after}")


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied in order, and the unconstrained tensors that they are applied to.

    Args:
        modules: One or more modules. If all have a `right_inverse`, it computes the unconstrained tensor.
        original: The parameter or buffer.
        unsafe: Allow changes of dtype and shape, without checks.

    Raises:
        ValueError: If there are no modules, or a result has the wrong type, dtype or shape.
    """

    original: Tensor
    unsafe: bool

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not len(modules):
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, kind = original.shape, original.dtype
        new = self._invert(original)
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            self._take_one(original, new)
        else:
            self._take_several(original, new)
        if not unsafe:
            _check_made(self(), kind, shape, "`unsafe`", ("unparametrized {what}", "parametrized {what}"))

    def _invert(self, value: Any) -> Any:
        """Return the result of the modules' `right_inverse`, in reverse order, skipping modules without one."""
        with recording(False):
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):
                        value = module.right_inverse(value)
        if not isinstance(value, Tensor | Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(value).__name__}"
            )
        return value

    def _take_one(self, original: Tensor, new: Tensor) -> None:
        for what in ("dtype", "device"):
            before, after = getattr(original, what), getattr(new, what)
            if before != after:
                raise ValueError(
                    f"When `right_inverse` outputs one tensor, it may not change the {what}.\noriginal.{what}: "
                    f"{before}\nright_inverse(original).{what}: {after}"
                )
        _put(original, new)
        _register(self, "original", original)

    def _take_several(self, original: Tensor, new: Sequence[Any]) -> None:
        for i, part in enumerate(new):
            if not isinstance(part, Tensor):
                raise ValueError(
                    "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got element "
                    f"{i} of the sequence with type {type(part).__name__}."
                )
            own = Parameter(part, original.requires_grad) if isinstance(original, Parameter) else part
            own.requires_grad_(original.requires_grad)
            _register(self, f"original{i}", own)

    def _originals(self) -> list[Tensor]:
        return (
            [self.original]
            if self.is_tensor
            else [getattr(self, f"original{i}") for i in range(self.ntensors)]
        )

    def right_inverse(self, value: Any) -> None:
        """Set the unconstrained tensors so that the parametrized tensor is `value`.

        Raises:
            RuntimeError: If a module has no `right_inverse`.
            ValueError: If its result has the wrong type, dtype or shape.
        """
        with recording(False):
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                value = module.right_inverse(value)
        if self.is_tensor:
            self._assign_one(value)
        else:
            self._assign_several(value)

    def _assign_one(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise ValueError(f"`right_inverse` should return a tensor. Got {type(value).__name__}")
        if value.dtype is not self.original.dtype:
            raise ValueError(
                f"The tensor returned by `right_inverse` has dtype {value.dtype} while `original` has dtype "
                f"{self.original.dtype}"
            )
        _put(self.original, value)

    def _assign_several(self, value: Any) -> None:
        if not isinstance(value, Sequence):
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors. Got {type(value).__name__}."
            )
        if len(value) != self.ntensors:
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got a sequence of "
                f"length {len(value)}."
            )
        originals = self._originals()
        for i, (own, part) in enumerate(zip(originals, value, strict=True)):
            if not isinstance(part, Tensor):
                raise ValueError(
                    "'right_inverse' must return a sequence of tensors or reference-type opaques. Got element "
                    f"{i} of type {type(part).__name__}."
                )
            if own.dtype is not part.dtype:
                raise ValueError(
                    f"Tensor {i} returned by `right_inverse` has dtype {part.dtype} while `original{i}` has dtype "
                    f"{own.dtype}"
                )
        for own, part in zip(originals, value, strict=True):
            _put(own, part)

    def forward(self) -> Any:
        """Return the parametrized tensor."""
        first, *others = self
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return value


# -- modules ------------------------------------------------------------------------------------------------


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy. The default deep copy calls `__getstate__`, which a parametrized module refuses."""
    if id(self) in memo:
        return memo[id(self)]
    replica = self.__new__(type(self))
    memo[id(self)] = replica
    replica.__dict__ = copy.deepcopy(self.__dict__, memo)
    for slot in copyreg._slotnames(type(self)):  # type: ignore[attr-defined]
        if hasattr(self, slot):
            setattr(replica, slot, copy.deepcopy(getattr(self, slot), memo))
    return replica


def _refuse_state(self: Any) -> Any:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict(). See:\n"
        "https://pytorch.org/tutorials/beginner/saving_loading_models.html"
        "#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training"
    )


def _give_class(module: Module) -> None:
    """Give the module a class that no other module has, for the properties of its parametrized tensors."""
    kind = type(module)
    members: dict[str, Any] = {"__getstate__": _refuse_state}
    if not hasattr(kind, "__deepcopy__"):
        members["__deepcopy__"] = _deepcopy
    module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), members)


def _give_property(module: Module, name: str) -> None:
    def value(self: Any) -> Any:
        return _cache.value(self, name, self.parametrizations[name])

    def assign(self: Any, value: Any) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(value, assign))


def register_parametrization(
    module: Any, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Any:
    """Make a parameter or buffer the result of `parametrization` applied to an unconstrained tensor. Returns the
    module.

    A second parametrization is applied to the result of the first. Reading the attribute computes it. Assigning to it
    needs a `right_inverse`, which also initializes the unconstrained tensor.

    Args:
        unsafe: Allow changes of dtype and shape.

    Raises:
        ValueError: If there is no such tensor, or a result has the wrong type, dtype or shape.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            _check_second(module, tensor_name, parametrization)
        listed = module.parametrizations[tensor_name]
        listed.append(parametrization)
        listed.unsafe |= unsafe
        return module
    if tensor_name not in module._buffers and tensor_name not in module._parameters:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    listed = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe=unsafe)  # type: ignore[list-item]
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _give_class(module)
        module.parametrizations = ModuleDict()
    _give_property(module, tensor_name)
    module.parametrizations[tensor_name] = listed
    return module


def _check_second(module: Module, name: str, parametrization: Any) -> None:
    """Raise ValueError if a parametrization or its inverse changes dtype or shape."""
    before = getattr(module, name)
    after = parametrization(before)
    named = (f"module.{name}.{{what}}", f"parametrization(module.{name}).{{what}}")
    _check_made(after, before.dtype, before.shape, "the `unsafe`", named)
    if not hasattr(parametrization, "right_inverse"):
        return
    try:
        back = parametrization.right_inverse(after)
    except NotImplementedError:
        return
    if not isinstance(back, Tensor):
        raise ValueError(f"parametrization.right_inverse must return a tensor. Got: {type(back).__name__}")
    for what in ("dtype", "shape"):
        wanted, found = getattr(before, what), getattr(back, what)
        if wanted != found:
            raise ValueError(
                f"The tensor returned by parametrization.right_inverse must have the same {what} as module.{name}, "
                f"unless the `unsafe` flag is enabled.\nmodule.{name}.{what}: {wanted}\nreturned {what}: {found}"
            )


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Return True if a module has a parametrized tensor. With `tensor_name`, return True if the tensor of this name is
    parametrized.
    """
    listed = getattr(module, "parametrizations", None)
    if not isinstance(listed, ModuleDict):
        return False
    return len(listed) > 0 if tensor_name is None else tensor_name in listed


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Make a tensor a parameter or buffer again, with its parametrized value or with the original value.

    Returns the module.

    Raises:
        ValueError: If it is not parametrized, or the original is several tensors.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    listed = module.parametrizations[tensor_name]
    if listed.is_tensor:
        original = listed.original
        if leave_parametrized:
            with recording(False):
                _put(original, getattr(module, tensor_name))
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value) if value.requires_grad else value
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Any) -> type:
    """Return the class that a module had before it was parametrized."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Any, to_module: Any, tensor_name: str | None = None
) -> Any:
    """Copy the parametrizations of `from_module`, of one tensor or of all, to `to_module`, with the original tensors.

    Returns `to_module`.
    """
    if not is_parametrized(from_module):
        return to_module
    for name in [*from_module.parametrizations] if tensor_name is None else [tensor_name]:
        source = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name)))
        for parametrization in source:
            register_parametrization(to_module, name, parametrization)
        names = ["original"] if source.is_tensor else [f"original{i}" for i in range(source.ntensors)]
        for own in names:
            setattr(to_module.parametrizations[name], own, getattr(source, own))
    return to_module
