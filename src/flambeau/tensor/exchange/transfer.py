"""Copies: in place, to another dtype, device or layout, to Python values. Also the fills and resizes of `torch.*`.

# Note [How a copy between devices is ordered]
As in PyTorch. Between host and device: on the device's current stream; the host waits for it unless `non_blocking`,
which has an effect for pinned memory only. Between two devices: on the source's current stream, which first waits for
the target's current stream, which then waits for the copy. The copy is ordered in both streams, and
the host does not wait.

A copy that one memory copy cannot do (another dtype, gaps, an expanded source) goes through contiguous temporaries. A
non-blocking copy between host and device converts on the device, on its stream, so pinned memory on either side is used
asynchronously. A blocking copy converts on the host and needs no device memory for it. A tensor with gaps is packed or
unpacked on its own device; on the host that happens immediately, so the temporary there is pageable.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU, META
from flambeau.core.device import device as torch_device
from flambeau.core.dtype import dtype
from flambeau.core.errors import NO_META_DATA, argument_type
from flambeau.core.flags import flags
from flambeau.core.host import host_memory
from flambeau.core.host_arrays import array_at
from flambeau.core.layout import contiguous_strides, is_dense, may_self_overlap
from flambeau.core.meta import Meta
from flambeau.ops import copy as ops
from flambeau.runtime import current, system
from flambeau.runtime.devices import peers
from flambeau.runtime.streams import sync_debug
from flambeau.runtime.streams.accelerator_event import Event
from flambeau.runtime.streams.accelerator_stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tape.mode import mode, recording
from flambeau.tensor import dispatch, interception, layout_functions
from flambeau.tensor.arguments.extents import require_backed
from flambeau.tensor.arguments.options import kind_of, place, place_copy, shape_of
from flambeau.tensor.arguments.public import both, method, method_and_function
from flambeau.tensor.arguments.typing import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    lies_in,
    memory_format,
    parse_type,
    preserve_format,
    strides_like,
    suggested_format,
    type_name,
)  # fmt: skip
from flambeau.tensor.autograd.in_place import begin_in_place, finish_in_place
from flambeau.tensor.autograd.inplace_checks import refuse_inference
from flambeau.tensor.autograd.recording import RecordPlan, record_result
from flambeau.tensor.call import call, call_into, empty, unary
from flambeau.tensor.deterministic_fill import fill_from
from flambeau.tensor.signatures import signatures
from flambeau.tensor.storage import PinnedStorage
from flambeau.tensor.storage_resize import resize_storage
from flambeau.tensor.tensor import Tensor, make

_NUMBERS: Any = (bool, int, float, complex, np.number, np.bool_)

# -- copy_ ------------------------------------------------------------------------------------------------


@method
@signatures("Tensor.copy_(other: Tensor, non_blocking: bool=)")
def copy_(self: Tensor, src: Any, non_blocking: bool = False, **old: Any) -> Tensor:
    """Copy the elements of `src`, of any dtype and device, broadcast to this shape. Returns itself.

    With `non_blocking`, a copy between pinned host memory and a CUDA device returns before it is done.
    """
    if old:
        _rename_async(old, "copy_")
        non_blocking = old.pop("non_blocking", non_blocking)
    if non_blocking.__class__ is not bool:
        raise TypeError(argument_type("copy_", "non_blocking", 2, "bool", non_blocking))
    if isinstance(src, _NUMBERS):
        return fill_(self, _convert_number(src, self.meta.dtype))
    if not isinstance(src, Tensor):
        raise TypeError(argument_type("copy_", "other", 1, "Tensor", src))
    if src.meta.dtype.is_complex and not self.meta.dtype.is_complex and self.meta.dtype is not dtypes.bool_:
        _warn_of_lost_imaginary()
    refuse_inference(self)
    node = None
    if (self.history is not None or src.history is not None) and mode.recording:
        node = begin_in_place(RecordPlan(ops.copy, (), (src,), (self.meta,)), (src,), self)
    if interception.count and dispatch.is_shown((self, src)):
        dispatch.show("copy_", self, src, non_blocking)
    elif self.meta.sparse or src.meta.sparse:
        layout_functions.find("copy_")(self, src)
    elif self.meta is not src.meta or self.memory is not src.memory or self.ptr != src.ptr:
        write(self, src, non_blocking)
    self.counter.version += 1
    if node is not None:
        finish_in_place(node, (src,), self)
    return self


def _convert_number(x: Any, kind: dtype) -> Any:
    """Return the value that an element of a dtype has after a copy of `x`. Integers wrap; fills refuse such numbers."""
    ops.require_64_bits(x)
    values = np.asarray([x])
    converted = np.empty(1, kind.numpy)
    ops.caster(dtypes.from_numpy(values.dtype), kind)(converted, values)
    return converted[0].item()


def write(target: Tensor, source: Tensor, non_blocking: bool = False) -> None:
    """Copy the elements of `source` without a version change, because a new tensor's first contents are not a
    change.
    """
    to, where = target.meta, source.meta
    if to.device is where.device:
        system.require_open(target.memory.context)
        version = target.counter.version
        if source.history is None and target.history is None:
            call_into(ops.copy, (target,), (source,), (to.dtype, to.shape))
        else:  # the caller records the copy
            with recording(False):
                call_into(ops.copy, (target,), (source,), (to.dtype, to.shape))
        target.counter.version = version
        return
    if where.shape != to.shape or may_self_overlap(to.shape, to.strides):
        _check(target, source)
    if where.device is META:
        raise NotImplementedError(NO_META_DATA)
    if to.numel == 0 or to.device is META:
        return
    for t in (target, source):
        if t.meta.short:
            require_backed(t)
    if flags.sync_debug_mode and not non_blocking and CPU in (to.device, where.device):
        sync_debug.announce()
    if CPU in (to.device, where.device):
        _copy_host(target, source, bool(non_blocking))
    else:
        _copy_across(target, source)


def _check(target: Tensor, source: Tensor) -> None:
    """Raise the errors of a copy on one device before anything is enqueued."""
    ops.copy.rule((source.meta,), (target.meta.dtype, target.meta.shape))
    if may_self_overlap(target.meta.shape, target.meta.strides):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )


def _warn_of_lost_imaginary() -> None:
    warn_program("Casting complex values to real discards the imaginary part", UserWarning)


def _alike(target: Meta, source: Meta) -> bool:
    """Return True if one memory copy suffices: both have equal dtypes and orders of dimensions, and no gaps."""
    return (
        target.dtype is source.dtype
        and target.shape == source.shape
        and ((target.contiguous and source.contiguous)
             or (target.strides == source.strides and target.span == target.nbytes))
    )  # fmt: skip


def _as_contiguous(source: Tensor, kind: dtype, shape: tuple[int, ...]) -> Tensor:
    """Return `source` as a contiguous tensor of a dtype and (broadcast) shape: itself if it is such a tensor."""
    meta = source.meta
    if meta.dtype is kind and meta.shape == shape and meta.contiguous:
        return source
    packed: Tensor = call(ops.copy, (source,), (kind, shape))
    return packed


def _copy_host(target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Copy between host and device: see Note [How a copy between devices is ordered]."""
    to, kind = target.meta, source.meta.dtype
    if _alike(to, source.meta):
        _copy_bytes(target, source, non_blocking)
        return
    # the source is on the side on which the copy converts
    if (source.meta.device is CPU) is not non_blocking:
        kind = to.dtype
    packed = _as_contiguous(source, kind, to.shape)
    if to.contiguous and kind is to.dtype:
        _copy_bytes(target, packed, non_blocking)
        return
    landing = empty(Meta.contiguous_of(to.shape, kind, to.device))
    _copy_bytes(landing, packed, non_blocking)
    write(target, landing)


def stream_of(t: Tensor) -> Any:
    """Return the current stream of a tensor's device. Raises RuntimeError if its machine is closed."""
    context = t.memory.context
    system.require_open(context)
    return current.local.streams[context.index]


def _copy_bytes(target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Copy memory between host and device, for tensors for which one memory copy suffices."""
    here, there = (target, source) if target.meta.device is CPU else (source, target)
    stream, driver = stream_of(there), there.memory.context.driver
    memory = here.memory.host_memory(here.ptr, source.meta.nbytes, awaited=not non_blocking)
    there.memory.used_on(stream.handle)
    if here is source:
        driver.copy_in(target.ptr, memory, stream.handle)
    else:
        driver.copy_out(memory, source.ptr, stream.handle)
    stream.queue.busy = True
    if non_blocking:
        here.memory.record_copy(here.ptr, stream)
    else:
        driver.stream_sync(stream.handle)


def _copy_across(target: Tensor, source: Tensor) -> None:
    """Copy between two devices. See Note [How a copy between devices is ordered]."""
    to = target.meta
    if not _alike(to, source.meta):
        packed = _as_contiguous(source, to.dtype, to.shape)
        if not to.contiguous:
            landing = empty(Meta.contiguous_of(to.shape, to.dtype, to.device))
            _copy_across(landing, packed)
            write(target, landing)
            return
        source = packed
    here, there = stream_of(source), stream_of(target)
    giver, taker = source.memory.context, target.memory.context
    if not peers.direct(giver, taker):
        _copy_staged(target, source, here, there)
        return
    _wait(here, there, "copy between devices: the copy waits until its target may be written")
    source.memory.used_on(here.handle)
    target.memory.share()  # the copy runs on a stream of the source's device
    giver.driver.copy(target.ptr, source.ptr, to.nbytes, here.handle)
    here.queue.busy = True
    _wait(there, here, "copy between devices: the target's stream waits until the copy has arrived")


def _copy_staged(target: Tensor, source: Tensor, here: Any, there: Any) -> None:
    """Copy through pinned memory: to the host on the source's stream, to the device on the target's stream."""
    _wait(here, there, "copy between devices: the copy waits until its target may be written")
    staging = PinnedStorage(target.meta.nbytes)
    memory = staging.host_memory(staging.ptr, target.meta.nbytes)
    source.memory.used_on(here.handle)
    source.memory.context.driver.copy_out(memory, source.ptr, here.handle)
    here.queue.busy = True
    staging.record_copy(staging.ptr, here)
    _wait(there, here, "copy between devices: the copy in waits until the bytes are in host memory")
    target.memory.used_on(there.handle)
    target.memory.context.driver.copy_in(target.ptr, memory, there.handle)
    there.queue.busy = True
    staging.record_copy(staging.ptr, there)
    _wait(here, there, "copy between devices: the source's stream waits until the copy has arrived")


def _wait(waiter: Any, for_: Any, why: str) -> None:
    """Make a stream wait for all work enqueued on another."""
    context = for_.context
    event = context.driver.event_create(context.driver_index, False)
    with wait_reason(str, why):
        context.driver.event_record(event, for_.handle)
        waiter.context.driver.stream_wait(waiter.handle, event)
    context.driver.event_destroy(event)


# -- copies to elsewhere ----------------------------------------------------------------------------------


def empty_pinned(meta: Meta) -> Tensor:
    """Return a new uninitialized CPU tensor in pinned memory."""
    storage = PinnedStorage(meta.nbytes)
    return make(meta, storage, storage.ptr)


def copy_as(source: Tensor, meta: Meta, non_blocking: bool = False, pin: bool = False) -> Tensor:
    """Return a new tensor of `meta` (dense) with the elements of `source`."""
    if interception.count and dispatch.is_shown((source,)):
        return _copy_shown(source, meta, non_blocking)
    if (
        meta.plain and meta.device is source.meta.device and not pin
    ):  # the operator's own layout: no need to make the result first
        result: Tensor = unary(ops.copy, source, (meta.dtype, meta.shape))
        return result
    if source.meta.device is META and meta.device is not META:
        raise NotImplementedError(NO_META_DATA)  # before memory is allocated for the copy
    result = empty_pinned(meta) if pin else empty(meta)
    write(result, source, non_blocking)
    if source.history is not None:
        record_result(ops.copy, (meta.dtype, meta.shape, meta.device), (source,), (result,))
    return result


def _copy_shown(source: Tensor, meta: Meta, non_blocking: bool) -> Tensor:
    """Show handlers a copy: with its dtype and device if they change, and the format in memory if it does."""
    given: dict[str, Any] = {}
    if meta.strides != strides_like(source.meta, None):
        formats = (contiguous_format, channels_last, channels_last_3d)
        given["memory_format"] = next(f for f in formats if strides_like(meta, f) == meta.strides)
    if meta.dtype is source.meta.dtype and meta.device is source.meta.device:
        result: Tensor = dispatch.show("clone", source, **given)
    else:
        if meta.dtype is not source.meta.dtype:
            given["dtype"] = meta.dtype
        if meta.device is not source.meta.device:
            given |= {"device": meta.device, "non_blocking": non_blocking}
        result = dispatch.show("_to_copy", source, **given)
    record_result(ops.copy, (meta.dtype, meta.shape, meta.device), (source,), (result,))
    return result


@both
def clone(input: Tensor, *, memory_format: memory_format | None = None) -> Tensor:
    """Return a copy. The order of dimensions in memory is kept unless `memory_format` changes it."""
    meta = input.meta
    if memory_format is None and meta.plain:
        result: Tensor = unary(ops.copy, input, (meta.dtype, meta.shape))
        return result
    return copy_as(input, meta.with_(strides=strides_like(meta, memory_format)))


@method
def contiguous(self: Tensor, *, memory_format: memory_format = contiguous_format) -> Tensor:
    """Return the tensor itself if its memory has this format, else a copy that has."""
    if is_contiguous(self, memory_format=memory_format):
        if memory_format is None:
            raise TypeError(
                "contiguous(): argument 'memory_format' must be torch.memory_format, not NoneType"
            )
        return self
    if self.meta.sparse and self.meta.numel:
        raise RuntimeError(
            "unsupported memory format option Contiguous: a sparse tensor has no order in memory"
        )
    if memory_format is contiguous_format:
        copied: Tensor = unary(ops.copy, self, (self.meta.dtype, self.meta.shape))
        return copied
    return clone(self, memory_format=memory_format)


@method
def is_contiguous(self: Tensor, *, memory_format: memory_format = contiguous_format) -> bool:
    """Return True if the elements are in memory in the order of `memory_format`, without gaps."""
    meta = self.meta
    if memory_format is contiguous_format:
        return meta.contiguous
    if meta.sparse:
        return False
    try:
        want = strides_like(meta, memory_format)
    except RuntimeError:  # a tensor of another rank
        return False
    return all(n == 1 or a == b for n, a, b in zip(meta.shape, meta.strides, want, strict=True))


# -- Python values ----------------------------------------------------------------------------------------


def host_array(t: Tensor, write: bool = False) -> Any:
    """Return the elements of a CPU tensor as an array, and report the host's read or write to observers."""
    meta = t.meta
    if meta.sparse:
        t.memory.expose()
    if not meta.numel:  # wherever that points, there is nothing
        return np.empty(meta.shape, meta.dtype.numpy)
    if meta.short:
        require_backed(t)
    system.host.driver.host_touch(t.ptr, meta.span, write)
    return array_at(t.ptr, meta.shape, meta.dtype.numpy, meta.byte_strides)


def on_host(t: Tensor) -> Tensor:
    """Return `t`, or its copy on the CPU after waiting for the current stream of its device."""
    if t.meta.sparse:
        t.memory.expose()
    return (
        t
        if t.meta.device is CPU
        else copy_as(t, t.meta.with_(device=CPU, strides=strides_like(t.meta, None)))
    )


@method
def item(self: Tensor) -> bool | int | float | complex:
    """Return the only element as a Python number. A CUDA tensor's current stream is synchronized."""
    if self.meta.numel != 1:
        raise RuntimeError(f"a Tensor with {self.meta.numel} elements cannot be converted to Scalar")
    if interception.count and dispatch.is_shown((self,)):
        return dispatch.show("_local_scalar_dense", self)
    if self.meta.device is META:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")
    here = on_host(self)  # named: a window does not keep its memory
    value: bool | int | float | complex = host_array(here).item()
    return value


@method
def tolist(self: Tensor) -> Any:
    """Return the elements as nested lists of Python numbers; a number for a 0-dim tensor."""
    here = on_host(self)
    least = 8 * self.meta.numel  # a pointer for each element
    if least > host_memory.UNASKED and (left := host_memory.available()) is not None and least > left:
        raise MemoryError(
            f"tolist: a list of {self.meta.numel:,} elements takes {least:,} bytes at least, and the host has {left:,} "
            "left. Fix: convert a part of the tensor, or use numpy()."
        )
    return host_array(here).tolist()


# -- the whole of it: to, cuda, cpu, type ------------------------------------------------------------------


def _move(t: Tensor, meta: Meta, non_blocking: bool, copy: bool) -> Tensor:
    """Return `t` with the given meta, itself if it has that meta and `copy` is False."""
    if meta is t.meta and not copy:
        return t
    if t.meta.dtype.is_complex and not meta.dtype.is_complex and meta.dtype is not dtypes.bool_:
        _warn_of_lost_imaginary()
    leaves = meta.device is CPU and t.meta.device is not CPU
    return copy_as(t, meta, non_blocking, pin=non_blocking and leaves)


@method
def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return this tensor with another dtype, device or memory format: `to(dtype)`, `to(device, dtype)`, `to(other)`.

    Returns itself if nothing changes and `copy` is False. With `non_blocking`, a copy from pinned memory to a CUDA
    device returns before it has finished, and a copy to the CPU returns a pinned tensor that the stream still writes.
    """
    meta = self.meta
    if (
        len(args) == 1
        and not kwargs
        and args[0].__class__ is dtype
        and meta.plain
        and not meta.dtype.is_complex
    ):
        return self if args[0] is meta.dtype else unary(ops.copy, self, (args[0], meta.shape))
    where, kind, non_blocking, copy, form = to_arguments(args, kwargs)
    if meta.sparse:
        return layout_functions.find("to")(self, where, kind, non_blocking, copy)
    if form is None:
        strides = meta.strides if _dense(meta) else strides_like(meta, None)
    else:
        strides = strides_like(meta, form)
    wanted = meta.with_(strides=strides, dtype=kind, device=where)
    same = wanted.dtype is meta.dtype and wanted.device is meta.device
    if same and not copy and (form is None or lies_in(meta, form)):
        return self
    return _move(self, wanted, non_blocking, copy)


def _dense(meta: Meta) -> bool:
    """Return True for a layout without gaps or overlaps. A copy keeps such strides."""
    return is_dense(meta.shape, meta.strides)


def to_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool, bool, Any]:
    """Return (device, dtype, non_blocking, copy, memory_format) of `to`'s overloads."""
    given = dict(kwargs)
    _rename_async(given, "to")
    rest = list(args)
    first = rest.pop(0) if rest else given.pop("other", None)
    where = kind = None
    if isinstance(first, Tensor):
        where, kind = first.meta.device, first.meta.dtype
    elif first.__class__ is dtype or (
        isinstance(first, builtins.type) and first in (float, int, bool, complex)
    ):
        kind = kind_of(first, "to")
    else:
        where = None if first is None else place_copy(first)
        second = rest.pop(0) if rest else None
        kind = None if second is None else kind_of(second, "to")
    given |= dict(zip(("non_blocking", "copy"), rest, strict=False))
    where = place_copy(given.pop("device")) if given.get("device") is not None else where
    kind = kind_of(given.pop("dtype"), "to") if given.get("dtype") is not None else kind
    non_blocking, copy = given.pop("non_blocking", False), given.pop("copy", False)
    form = given.pop("memory_format", None)
    given = {name: value for name, value in given.items() if name not in ("device", "dtype")}
    if given or len(rest) > 2:
        raise TypeError(f"to() received an invalid combination of arguments - got {_listing(args, kwargs)}")
    return where, kind, bool(non_blocking), bool(copy), None if form is preserve_format else form


def _listing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return arguments as PyTorch's argument parser lists them in errors."""
    return (
        "("
        + ", ".join(
            [a.__class__.__name__ for a in args] + [f"{k}={v.__class__.__name__}" for k, v in kwargs.items()]
        )
        + ")"
    )


def _rename_async(given: dict[str, Any], function: str) -> None:
    """Move the argument `async`, the old name of `non_blocking`, which is a Python keyword now."""
    if "async" in given:
        warn_program(
            f"This overload of {function} is deprecated: 'async' is now called 'non_blocking'", UserWarning
        )
        given["non_blocking"] = given.pop("async")


@method
def cuda(
    self: Tensor,
    device: Any = None,
    non_blocking: bool = False,
    *,
    memory_format: memory_format = preserve_format,
    **old: Any,
) -> Tensor:
    """Return this tensor on a CUDA device, by default the current one. Returns the tensor itself if it is there."""
    _rename_async(old, "cuda")
    non_blocking = old.pop("non_blocking", non_blocking)
    if old:
        raise TypeError(f"cuda() got an unexpected keyword argument '{next(iter(old))}'")
    where = place("cuda" if device is None else device)
    if where.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device, but got {where}")
    return to(self, where, non_blocking=non_blocking, memory_format=memory_format)


@method
def cpu(self: Tensor, *, memory_format: memory_format = preserve_format) -> Tensor:
    """Return this tensor on the CPU, itself if it is there. Waits for the current stream of its device."""
    return to(self, CPU, memory_format=memory_format)


@method
def type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return the type's name ('torch.cuda.FloatTensor'), or the tensor converted to a type or dtype."""
    if dtype is None:
        return type_name(self.meta)
    if isinstance(dtype, str) or hasattr(dtype, "torch_type_name"):
        name = dtype if isinstance(dtype, str) else dtype.torch_type_name
        kind, where = parse_type(name.replace(".sparse.", ".") if self.meta.sparse else name)
        if where.type == self.meta.device.type:
            where = self.meta.device
        return to(self, place(where), kind, non_blocking=non_blocking)
    if dtype.__class__ is not dtypes.dtype:
        if not isinstance(dtype, builtins.type):
            raise TypeError("dtype must be a type, str, or dtype object")
        raise ValueError(f"invalid type: '{dtype.__name__}'")
    return to(self, dtype, non_blocking=non_blocking)


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return this tensor with the dtype and on the device of another."""
    return to(self, other)


def _define_cast(name: str, kind: dtype) -> None:
    def cast(self: Tensor, *, memory_format: memory_format | None = preserve_format) -> Tensor:
        if memory_format is preserve_format or memory_format is None:
            return to(self, kind)
        return to(self, kind, memory_format=memory_format)

    cast.__name__ = name
    cast.__doc__ = f"This tensor as {kind!r}; itself if it is."
    method(cast)


CASTS = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int": dtypes.int32, "long": dtypes.int64, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8,
    "bool": dtypes.bool_,
}  # fmt: skip
"""The methods, of tensors and storages, that are named after a dtype of C."""

for _name, _kind in {
    **CASTS, "cfloat": dtypes.complex64, "cdouble": dtypes.complex128, "chalf": dtypes.complex32,
}.items():  # fmt: skip
    _define_cast(_name, _kind)


# -- pinned memory ----------------------------------------------------------------------------------------


@method
def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """Return a copy in pinned host memory, which copies to CUDA devices may use asynchronously; itself if pinned.

    `device` is deprecated.

    Raises:
        RuntimeError: If the tensor is not on the CPU, or `device` is not a CUDA device.
    """
    if device is not None and (asked := _deprecated_device(device, "pin_memory")).type != "cuda":
        raise RuntimeError(f"{asked.type.upper()} device type not an accelerator.")
    if self.meta.device is not CPU or self.meta.sparse:
        raise RuntimeError(f"cannot pin '{type_name(self.meta)}' only dense CPU tensors can be pinned")
    if _lies_pinned(self):
        return self
    return copy_as(self, self.meta.with_(strides=strides_like(self.meta, None)), pin=True)


@method
def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Return True if the storage is pinned (page-locked) host memory, by any library.

    `device` is deprecated: the answer is False for any but a CUDA device.
    """
    if device is not None and _deprecated_device(device, "is_pinned").type != "cuda":
        return False
    return _lies_pinned(self)


def _lies_pinned(t: Tensor) -> bool:
    if t.meta.sparse:
        return False
    return t.memory.is_pinned(t.memory.ptr, t.memory.nbytes)


def _deprecated_device(device: Any, name: str) -> torch_device:
    text = f"The argument 'device' of Tensor.{name}() is deprecated. Please do not pass this argument."
    warn_program(text, DeprecationWarning)
    return place(device)


@method
def record_stream(self: Tensor, stream: Any) -> None:
    """Record that work on `stream` uses this memory. After its free, the memory is reused once that work is done.

    Needed where a tensor is used on another stream than the one it was allocated on.
    """
    if not isinstance(stream, Stream):
        raise RuntimeError("unknown parameter type")
    if self.meta.device is CPU:
        raise NotImplementedError(
            "Could not run 'aten::record_stream' with arguments from the 'CPU' backend."
        )
    if self.meta.sparse:
        layout_functions.find("for_parts")(self, lambda part: record_stream(part, stream))
        return
    system.require_open(stream.context)
    system.require_open(self.memory.context)
    if self.memory.block is not None:
        allocator: Any = self.memory.context.allocator
        allocator.record_stream(self.memory.block, stream)


@method
def record_use(self: Tensor, event: Event) -> None:
    """Record that work up to a recorded event uses this memory. After its free, reuse waits only for that event.

    This is more exact than `record_stream`, which waits for all work that the stream has when the memory is freed. The
    event may be recorded again afterwards.

    Raises:
        RuntimeError: If the event was never recorded.
    """
    if not isinstance(event, Event):
        raise TypeError(
            f"record_use(): argument 'event' must be torch.cuda.Event, not {event.__class__.__name__}"
        )
    if self.meta.device is CPU:
        raise NotImplementedError("Could not run 'record_use' with arguments from the 'CPU' backend.")
    if self.meta.sparse:
        layout_functions.find("for_parts")(self, lambda part: record_use(part, event))
        return
    mark = event.lend()
    system.require_open(mark.context)
    system.require_open(self.memory.context)
    if self.memory.block is not None:
        allocator: Any = self.memory.context.allocator
        allocator.record_use(self.memory.block, mark)


# -- fills ------------------------------------------------------------------------------------------------


def new_filled(meta: Meta, value: Any) -> Tensor:
    """Return a new dense tensor of one value.

    Raises:
        RuntimeError: If the dtype cannot hold it.
    """
    return filled_with(meta, ops.checked_scalar(value, meta.dtype))


def filled_with(meta: Meta, number: Any) -> Tensor:
    """Return `new_filled` for a number that was checked before."""
    if meta.plain:
        result: Tensor = call(ops.fill, (number,), (meta.dtype, meta.shape, meta.device))
        return result
    result = empty(meta)
    call_into(ops.fill, (result,), (number,), (meta.dtype, meta.shape, meta.device))
    result.counter.version = 0
    return result


@method_and_function
def fill_(self: Tensor, value: Any) -> Tensor:
    """Set every element to `value`, a number or a 0-dim tensor. Returns itself."""
    if isinstance(value, Tensor):
        if value.meta.ndim:
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{value.meta.ndim} dimensions."
            )
        if interception.count and dispatch.is_shown((self, value)):
            return _fill_shown(self, "fill_.Tensor", value, ops.copy)
        copy_(self, value.clone() if value.memory is self.memory else value)
        return self
    if not isinstance(value, _NUMBERS):
        raise TypeError(argument_type("fill_", "value", 1, "Number", value))
    number = ops.checked_scalar(value, self.meta.dtype)
    if self.meta.sparse:
        return layout_functions.find("fill_")(self, number)
    if interception.count and dispatch.is_shown((self,)):
        return _fill_shown(self, "fill_.Scalar", number, ops.fill)
    target = _once(self)
    meta = target.meta
    params = (meta.dtype, meta.shape, meta.device)
    node = None
    if target is not self and mode.recording:
        node = begin_in_place(RecordPlan(ops.fill, params, (number,), (self.meta,)), (number,), self)
    call_into(ops.fill, (target,), (number,), params)
    if node is not None:
        finish_in_place(node, (number,), self)
    return self


def _fill_shown(self: Tensor, name: str, value: Any, op: Any) -> Tensor:
    """Show handlers a fill, and record it for autograd."""
    node = None
    if mode.recording:
        params = (self.meta.dtype, self.meta.shape, self.meta.device)
        node = begin_in_place(RecordPlan(op, params, (value,), (self.meta,)), (value,), self)
    dispatch.show(name, self, *([] if name == "zero_" else [value]))
    if node is not None:
        finish_in_place(node, (value,), self)
    return self


def _once(t: Tensor) -> Tensor:
    """Return a view with each element once: expanded dimensions have size 1, since a fill may repeat."""
    meta = t.meta
    if not any(n > 1 and s == 0 for n, s in zip(meta.shape, meta.strides, strict=True)):
        return t
    shape = tuple([min(n, 1) if s == 0 else n for n, s in zip(meta.shape, meta.strides, strict=True)])
    require_backed(t)
    once = make(meta.with_(shape=shape), t.memory, t.ptr)
    once.counter = t.counter
    return once


@method_and_function
def zero_(self: Tensor) -> Tensor:
    """Set every element to zero. Returns itself."""
    if interception.count and dispatch.is_shown((self,)):
        return _fill_shown(self, "zero_", 0, ops.fill)
    return fill_(self, 0)


# -- sizes and storage, in place --------------------------------------------------------------------------


@method
@signatures(
    "Tensor.resize_(size: IntTuple, *, memory_format: memory_format | None=)",
    shown="Tensor.resize_(*sizes: int, memory_format: memory_format | None=contiguous_format)",
)
def resize_(
    self: Tensor, *sizes: Any, size: Any = None, memory_format: memory_format | None = None
) -> Tensor:
    """Change the size; the storage grows if necessary, with uninitialized elements. Returns itself.

    Args:
        memory_format: The new strides; None: contiguous ones, or unchanged ones if the size is the same.

    Raises:
        RuntimeError: If it requires a gradient.
    """
    shape = shape_of(sizes if size is None else (size,), "resize_")
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    if memory_format is preserve_format:
        raise RuntimeError(
            "Unsupported memory formatPreserve\nresize_ changes the size: name a format with strides of its own."
        )
    plain = self.meta.with_(shape=shape, strides=contiguous_strides(shape))
    meta = plain.with_(strides=strides_like(plain, memory_format or contiguous_format))
    if shape == self.meta.shape and memory_format is None:
        return self
    refuse_inference(self)
    self.counter.version += 1
    held = self.memory.nbytes
    wanted = self.storage_offset() * meta.itemsize + meta.span
    if held < wanted:
        resize_storage(self, wanted)
    self.meta = meta
    fill_from(self.memory, held, meta.dtype)
    return self


@method_and_function
def resize_as_(self: Tensor, the_template: Tensor, *, memory_format: memory_format | None = None) -> Tensor:
    """Resize to another tensor's size.

    Args:
        memory_format: The new strides, as for `resize_`; torch.preserve_format: the template's format.
    """
    if memory_format is preserve_format:
        memory_format = suggested_format(the_template.meta)
    return resize_(self, the_template.meta.shape, memory_format=memory_format)
