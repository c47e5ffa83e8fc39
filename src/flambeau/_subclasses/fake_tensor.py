"""torch._subclasses.fake_tensor: tensors with a shape, a dtype and a device, whose values are never computed.

A fake tensor wraps a tensor on the meta device. Inside of a `FakeTensorMode` operators run on these, so that shapes,
dtypes and errors are those of the operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.core.absent import absent_class
from flambeau.core.device import META, device
from flambeau.core.dtype import bool_, uint8
from flambeau.core.errors import NotSupportedError, devices_differ
from flambeau.core.flags import flags
from flambeau.core.public_names import explain_absent_names
from flambeau.tape.mode import recording
from flambeau.tensor import dispatch
from flambeau.tensor.arguments.options import default_device, place
from flambeau.tensor.arguments.torch_function import ignore_overrides
from flambeau.tensor.functions.creation import empty_strided
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.wrappers import make_wrapper_subclass
from flambeau.utils._python_dispatch import TorchDispatchMode
from flambeau.utils._pytree import tree_leaves, tree_map

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "is_fake",
    "maybe_get_fake_mode",
    "unset_fake_temporarily",
]

FakeTensorConverter = absent_class(
    "torch._subclasses.fake_tensor", "FakeTensorConverter", "Use FakeTensorMode.from_tensor."
)


class DataDependentOutputException(RuntimeError):
    """The error raised if an operator returns a number that depends on values, which fake tensors lack.

    Attributes:
        func: The overload.
    """

    def __init__(self, func: Any) -> None:
        super().__init__(str(func))
        self.func = func


class DynamicOutputShapeException(DataDependentOutputException):
    """The error raised if the shape of an operator's result depends on values, which fake tensors lack."""


class FakeTensor(Tensor):
    """A tensor without values.

    Attributes:
        fake_mode: The mode that computes with it.
        fake_device: The device that it says it is on.
        elem: The tensor on the meta device.
    """

    __torch_function__ = ignore_overrides

    fake_mode: FakeTensorMode
    fake_device: device
    elem: Tensor

    @staticmethod
    def __new__(cls: type[FakeTensor], fake_mode: FakeTensorMode, elem: Tensor, device: Any) -> FakeTensor:
        """Return a fake tensor over `elem`, which lies on the meta device."""
        if elem.meta.device is not META:
            raise AssertionError(f"elem.device must be meta, got {elem.device}")
        where = place(device)
        made: Any = make_wrapper_subclass(
            cls, elem.meta.shape, elem.meta.strides, elem.storage_offset(), dtype=elem.dtype, device=where,
            requires_grad=elem.requires_grad,
        )  # fmt: skip
        made.fake_mode, made.fake_device, made.elem = fake_mode, where, elem
        result: FakeTensor = made
        return result

    def __init__(self, fake_mode: Any, elem: Any, device: Any) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        words = ["..."]
        if self.device.type != "cpu":
            words.append(f"device='{self.device}'")
        words.append(f"size={tuple(self.shape)}")
        if self.dtype is not flags.default_dtype:
            words.append(f"dtype={self.dtype}")
        if self.grad_fn is not None:
            words.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            words.append("requires_grad=True")
        return f"FakeTensor({', '.join(words)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(kind, FakeTensor) for kind in types):
            return NotImplemented
        mode = next(x.fake_mode for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor))
        return mode.run(func, args, kwargs or {})


class FakeTensorMode(TorchDispatchMode):
    """A context in which new tensors are fake, and operators compute no values.

    Args:
        allow_non_fake_inputs: True if operators may get tensors with values, which then count as fake.
        shape_env: None: sizes are numbers, not symbols.
        **other: Options of PyTorch for operators without a meta kernel. No effect: each operator has one.

    Source: `torch._subclasses.fake_tensor.FakeTensorMode`.
    """

    def __init__(
        self,
        *,
        allow_fallback_kernels: bool = True,
        allow_non_fake_inputs: bool = False,
        shape_env: Any = None,
        static_shapes: bool | None = None,
        **other: Any,
    ) -> None:
        if shape_env is not None or static_shapes is False:
            raise NotSupportedError(
                "FakeTensorMode: Flambeau has no symbolic shapes; leave shape_env out, and make one fake tensor for "
                "each shape"
            )
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self.shape_env = None
        self.static_shapes = True

    def from_tensor(self, tensor: Tensor, **other: Any) -> FakeTensor:
        """Return a fake tensor with the shape, strides, dtype and device of a tensor."""
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self:
                raise AssertionError("Mixing fake modes NYI")
            return tensor
        return self.snapshot(tensor).requires_grad_(tensor.requires_grad)  # type: ignore[return-value]

    def snapshot(self, tensor: Tensor) -> FakeTensor:
        """Return a fake tensor that describes a tensor, which may be fake, and has no gradient."""
        with dispatch.without_modes(), dispatch.without_classes(), recording(False):
            elem = empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self, elem, tensor.device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an overload on the tensors that fake ones wrap.

        Raises:
            DataDependentOutputException: If the result depends on values.
            RuntimeError: If the tensors are on different devices.
        """
        name = func._schema.name.partition("::")[2]
        if name in ("lift_fresh", "lift_fresh_copy"):
            return self.from_tensor(args[0])
        if name in _OF_VALUES:
            raise DataDependentOutputException(func)
        if name in _OF_DYNAMIC_SHAPE or (name == "index" and _has_mask(args[1])):
            raise DynamicOutputShapeException(func)
        fakes = [self._fake_of(x, func) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        where = _device_of(fakes, kwargs)
        inner_args, inner_kwargs = tree_map(lambda x: self._inner_of(x, func), (args, kwargs))
        with dispatch.without_modes(), recording(False):
            result = func(*inner_args, **inner_kwargs)
        by_elem = {id(fake.elem): fake for fake in fakes}

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            known = by_elem.get(id(x))
            return FakeTensor(self, x, where) if known is None else known

        return tree_map(wrap, result)

    def _inner_of(self, x: Any, func: Any) -> Any:
        """Return an argument as the overload on the meta device takes it."""
        if isinstance(x, Tensor):
            return self._fake_of(x, func).elem
        return META if isinstance(x, device) else x

    def _fake_of(self, x: Any, func: Any) -> FakeTensor:
        if isinstance(x, FakeTensor):
            return x
        if not self.allow_non_fake_inputs:
            raise AssertionError(
                "Please convert all Tensors to FakeTensors first or instantiate FakeTensorMode with "
                f"'allow_non_fake_inputs'. Found in {func}(...)"
            )
        return self.from_tensor(x)


_OF_VALUES = frozenset({"_local_scalar_dense", "equal", "is_nonzero"})
_OF_DYNAMIC_SHAPE = frozenset(
    {"_unique2", "bincount", "masked_select", "nonzero", "unique_consecutive", "unique_dim"}
)


def _has_mask(indices: Any) -> bool:
    return any(isinstance(i, Tensor) and i.dtype in (bool_, uint8) for i in indices)


def _device_of(fakes: list[FakeTensor], kwargs: dict[str, Any]) -> device:
    """Return the device of the results: that asked for, or that of the arguments; numbers go along."""
    if kwargs.get("device") is not None:
        return place(kwargs["device"])
    found: device | None = None
    for fake in fakes:
        if found is None or (fake.fake_device is not found and fake.dim()):
            if found is not None and any(f.fake_device is found and f.dim() for f in fakes):
                raise RuntimeError(devices_differ(found, fake.fake_device))
            found = fake.fake_device
    return found or default_device()


def is_fake(x: object) -> bool:
    """Return True if `x` is a fake tensor."""
    return isinstance(x, FakeTensor)


def maybe_get_fake_mode(t: object) -> FakeTensorMode | None:
    """Return the mode of a fake tensor; None for everything else."""
    return t.fake_mode if isinstance(t, FakeTensor) else None


@contextmanager
def unset_fake_temporarily() -> Iterator[FakeTensorMode | None]:
    """Run a block outside of the modes of fake tensors."""
    fake = next((mode for mode in reversed(dispatch.local.modes) if isinstance(mode, FakeTensorMode)), None)
    with dispatch.without_modes([m for m in dispatch.local.modes if not isinstance(m, FakeTensorMode)]):
        yield fake


explain_absent_names(globals(), "torch._subclasses.fake_tensor")
