"""`Parameter` and `Buffer`: the tensors that a module registers when they are assigned to it.

Lazy modules have `UninitializedParameter` and `UninitializedBuffer`, whose shape the first input determines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import FLOATING, dtype
from flambeau.core.flags import flags
from flambeau.tensor import dispatch
from flambeau.tensor.arguments.torch_function import ignore_overrides, overrides
from flambeau.tensor.arguments.typing import preserve_format
from flambeau.tensor.functions import creation
from flambeau.tensor.printing import unnamed
from flambeau.tensor.tensor import Tensor


class _ParameterType(type):
    """The metaclass of Parameter.

    A parameter whose data is of a tensor subclass keeps that class. An attribute `_is_param` makes it an instance.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return cls is Parameter and isinstance(instance, Tensor) and "_is_param" in instance.__dict__


_ParameterMeta = _ParameterType  # its name in PyTorch


class Parameter(Tensor, metaclass=_ParameterType):
    """A tensor that becomes a parameter of the module that it is assigned to.

    Operators return plain tensors for parameters. A parameter of a subclass that overrides functions keeps that class.

    Args:
        data: The tensor, whose memory is shared; default: an empty one.
        requires_grad: Compute gradients for it.
    """

    __slots__ = ()
    __torch_function__ = ignore_overrides

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        tensor = creation.empty(0) if data is None else data
        if not isinstance(tensor, Tensor):
            raise TypeError(f"Parameter(): argument 'data' must be Tensor, not {type(tensor).__name__}")
        if requires_grad and tensor.meta.dtype.category < FLOATING:
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        if overrides(type(tensor)) or type(tensor) in dispatch.classes:
            return _mark_as_parameter(tensor, requires_grad)
        made: Any = tensor.detach().requires_grad_(requires_grad)
        made.__class__ = cls  # allowed, because a parameter has no further slots
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            copy = self.data.clone(memory_format=preserve_format)
            memo[id(self)] = type(self)(copy, self.requires_grad)
        found: Parameter = memo[id(self)]
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        text = super().__repr__()
        return "Parameter containing:\n" + (text if type(self) is Parameter else f"Parameter({text})")

    def __reduce_ex__(self, protocol: Any) -> Any:
        made_of = self.data, self.requires_grad, OrderedDict()
        if not self.__dict__:
            return _rebuild_parameter, made_of
        return _rebuild_parameter_with_state, (*made_of, self.__dict__)


unnamed.add(Parameter)


def _mark_as_parameter(data: Any, requires_grad: bool) -> Any:
    made = data.detach().requires_grad_(requires_grad)
    if type(made) is not type(data):
        raise RuntimeError(
            f"Creating a Parameter from an instance of type {type(data).__name__} requires that detach() returns an "
            f"instance of the same type, but return type {type(made).__name__} was found instead. To use the type as a "
            "Parameter, please correct the detach() semantics defined by its __torch_dispatch__() implementation."
        )
    made._is_param = True
    return made


def _rebuild_parameter(data: Tensor, requires_grad: bool, backward_hooks: Any) -> Parameter:
    if not isinstance(requires_grad, bool):
        raise RuntimeError("requires_grad must be a bool")
    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(
    data: Tensor, requires_grad: bool, backward_hooks: Any, state: Any
) -> Parameter:
    """Return a parameter with Python attributes."""
    made = _rebuild_parameter(data, requires_grad, backward_hooks)
    made.__dict__.update(state)
    return made


class _BufferType(type):
    """The metaclass of Buffer. A tensor with the attribute `_is_buffer` is an instance of Buffer."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return cls is Buffer and isinstance(instance, Tensor) and "_is_buffer" in instance.__dict__


class Buffer(Tensor, metaclass=_BufferType):
    """A tensor that becomes a buffer of the module that it is assigned to.

    Args:
        data: The tensor, whose memory is shared; default: an empty one.
        persistent: Include it in the module's `state_dict`.
    """

    __slots__ = ()
    __torch_function__ = ignore_overrides

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        tensor = creation.empty(0) if data is None else data
        made = tensor.detach().requires_grad_(tensor.requires_grad)
        made.__dict__.update(persistent=persistent, _is_buffer=True)
        return made


# -- of lazy modules ------------------------------------------------------------------------------------


def is_lazy(param: Any) -> bool:
    """Return True if it is a parameter or buffer whose shape is not known yet."""
    return isinstance(param, UninitializedTensorMixin)


class UninitializedTensorMixin:
    """A tensor without a shape. Until it is materialized it only has a dtype and a device.

    Code that needs more of a tensor reads its `meta`, which raises.
    """

    __slots__ = ()

    cls_to_become: type = Tensor
    requires_grad: bool

    @property
    def meta(self) -> Any:
        raise ValueError(
            "Attempted to use an uninitialized parameter. This error happens when you are using a `LazyModule` or "
            "explicitly manipulating `torch.nn.parameter.UninitializedParameter` objects. When using LazyModules Call "
            "`forward` with a dummy batch to initialize the parameters before calling torch functions"
        )

    @property
    def shape(self) -> Any:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
            "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. Call "
            "`forward` to initialize the parameters before accessing their attributes."
        )

    @contextmanager
    def _as_known(self) -> Iterator[Any]:
        """Return the parameter as the plain empty tensor that it is based on."""
        uninitialized = self.__class__
        self.__class__ = self.cls_to_become
        try:
            yield self
        finally:
            self.__class__ = uninitialized

    @property
    def data(self) -> Tensor:
        with self._as_known() as known:
            return known.data

    @data.setter
    def data(self, other: Tensor) -> None:
        with self._as_known() as known:
            known.data = other

    @property
    def dtype(self) -> dtype:
        return self.data.dtype

    @property
    def device(self) -> device:
        return self.data.device

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        with self._as_known() as known:
            known.requires_grad_(requires_grad)
        return self

    def materialize(self, shape: Any, device: Any = None, dtype: dtype | None = None) -> None:
        """Give the tensor a shape and uninitialized memory. It becomes an ordinary parameter or buffer."""
        self.data = creation.empty(shape, device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = self.cls_to_become

    def share_memory_(self) -> Any:
        raise RuntimeError(
            "Can't share memory on an uninitialized parameter or buffer. Call `forward` to initialize the "
            "parameters before calling `module.share_memory()`."
        )

    def _again(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the class and the arguments that create an equal object."""
        return type(self), (self.requires_grad, self.device, self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            make, arguments = self._again()
            memo[id(self)] = make(*arguments)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._again()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A parameter whose shape is not known yet."""

    __slots__ = ()

    cls_to_become = Parameter

    def __new__(
        cls, requires_grad: bool = True, device: Any = None, dtype: dtype | None = None
    ) -> UninitializedParameter:
        data = creation.empty(0, device=device, dtype=dtype or flags.default_dtype)
        made: Any = Parameter.__new__(cls, data, requires_grad)
        return made


class UninitializedBuffer(UninitializedTensorMixin, Tensor):
    """A buffer whose shape is not known yet."""

    __slots__ = ()
    __torch_function__ = ignore_overrides

    cls_to_become = Tensor

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: dtype | None = None,
        persistent: bool = True,
    ) -> UninitializedBuffer:  # fmt: skip
        made: Any = creation.empty(0, device=device, dtype=dtype or flags.default_dtype)
        made.requires_grad_(requires_grad)
        made.__class__ = cls
        made.__dict__.update(persistent=persistent, _is_buffer=True)
        return made

    def _again(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), (self.requires_grad, self.device, self.dtype, self.__dict__["persistent"])
