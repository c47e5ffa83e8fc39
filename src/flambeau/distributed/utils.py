"""torch.distributed.utils: helpers for inputs of modules, storages and states, which libraries import."""

from __future__ import annotations

import dataclasses
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from flambeau import cuda
from flambeau.core.device import device as Device
from flambeau.core.dtype import dtype as Dtype
from flambeau.core.public_names import explain_absent_names
from flambeau.core.size import Size
from flambeau.distributed.ddp import replicas
from flambeau.distributed.ddp.replicas import _broadcast_coalesced
from flambeau.nn.modules.module import Module
from flambeau.nn.parallel.scatter_gather import _is_namedtuple
from flambeau.nn.utils.rnn import PackedSequence
from flambeau.tensor.tensor import Tensor

_sync_module_states = replicas._sync_module_states
_verify_param_shape_across_processes = replicas._verify_params_across_processes


def _pack_kwargs(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return all arguments as one tuple, and the keywords of the last ones."""
    return (*args, *kwargs.values()), tuple(kwargs)


def _unpack_kwargs(
    flat_args: tuple[Any, ...], kwarg_keys: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and keyword arguments of what `_pack_kwargs` returned."""
    if len(kwarg_keys) > len(flat_args):
        raise AssertionError(f"too many keys {len(kwarg_keys)} vs. {len(flat_args)}")
    count = len(flat_args) - len(kwarg_keys)
    return flat_args[:count], dict(zip(kwarg_keys, flat_args[count:], strict=True))


def _apply_to_tensors(fn: Callable[[Any], Any], container: Any) -> Any:
    """Return a container with `fn` applied to its tensors.

    Args:
        fn: The function.
        container: Tensors in tuples, lists, sets, dictionaries and dataclasses.
    """

    def apply(x: Any) -> Any:
        if isinstance(x, Tensor):
            return fn(x)
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            fields = [field.name for field in dataclasses.fields(x)]
            return dataclasses.replace(x, **{name: apply(getattr(x, name)) for name in fields})
        if isinstance(x, PackedSequence):
            apply(x.data)
            return x
        if isinstance(x, OrderedDict):
            result = type(x)()
            result.update((key, apply(value)) for key, value in x.items())
            return result
        if isinstance(x, dict):
            return {key: apply(value) for key, value in x.items()}
        if _is_namedtuple(x):
            return type(x)(*map(apply, x))
        return type(x)(map(apply, x)) if isinstance(x, list | tuple | set) else x

    return apply(container)


def _cast_forward_inputs(dtype: Dtype | None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return arguments whose floating-point tensors are converted to a dtype; None converts nothing."""
    if dtype is None:
        return args, kwargs

    def cast(x: Any) -> Any:
        return x.to(dtype) if x.is_floating_point() and x.dtype != dtype else x

    return _apply_to_tensors(cast, args), _apply_to_tensors(cast, kwargs)


def _recursive_to(inputs: Any, target_device: Any, use_side_stream_for_tensor_copies: bool) -> Any:
    """Return a list or tuple with the inputs on one device, as `scatter` to one device returns it.

    Args:
        inputs: Tensors in tuples, lists and dictionaries.
        target_device: The device.
        use_side_stream_for_tensor_copies: Copy from a GPU on another stream, which the current stream waits for.
    """
    target_device = Device(target_device)

    def move(x: Any) -> Any:
        if isinstance(x, Tensor | PackedSequence):
            source = x.data.device if isinstance(x, PackedSequence) else x.device
            if source == target_device:
                return (x,)
            aside = (
                use_side_stream_for_tensor_copies and source.type != "cpu" and target_device.type == "cuda"
            )
            return (_copy_aside(x, target_device) if aside else x.to(target_device),)
        if _is_namedtuple(x):
            return [type(x)(*members) for members in zip(*map(move, x), strict=True)]
        if isinstance(x, tuple) and x:
            return list(zip(*map(move, x), strict=True))
        if isinstance(x, list) and x:
            return [list(members) for members in zip(*map(move, x), strict=True)]
        if isinstance(x, dict) and x:
            return [type(x)(items) for items in zip(*map(move, x.items()), strict=True)]
        return [x]

    return move(inputs)


def _copy_aside(x: Any, device: Any) -> Any:
    """Return a copy on a GPU that another stream makes and the current stream waits for."""
    current, aside = cuda.current_stream(device), cuda.Stream(device)
    with cuda.stream(aside):
        copy = x.to(device)
    current.wait_stream(aside)
    (copy.data if isinstance(copy, PackedSequence) else copy).record_stream(current)
    return copy


def _to_kwargs(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    target_device: Any,
    use_side_stream_for_tensor_copies: bool,
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Return the arguments and keyword arguments of a call on one device, in tuples of one element each."""
    moved = _recursive_to(inputs, target_device, use_side_stream_for_tensor_copies) if inputs else []
    named = _recursive_to(kwargs, target_device, use_side_stream_for_tensor_copies) if kwargs else []
    moved += [()] * (len(named) - len(moved))
    named += [{} for _ in range(len(moved) - len(named))]
    return tuple(moved), tuple(named)


def _p_assert(cond: Any, s: str, raise_assertion_error: bool = True) -> None:
    """Print a text and the stack, and raise AssertionError, unless a condition is true."""
    if not cond:
        print(s)
        traceback.print_stack()
        if raise_assertion_error:
            raise AssertionError(s)


def _alloc_storage(tensor: Tensor, size: Size) -> None:
    """Give a tensor whose storage was freed memory for a shape again; its elements are undefined."""
    storage, nbytes = tensor.untyped_storage(), size.numel() * tensor.element_size()
    if storage.nbytes() != nbytes:
        _p_assert(
            storage.nbytes() == 0, "Tensor storage should have been resized to be 0 but got PLACEHOLDER"
        )
        storage.resize_(nbytes)


def _free_storage(tensor: Tensor) -> None:
    """Free the memory of a tensor, which must begin at the begin of its storage."""
    storage = tensor.untyped_storage()
    if storage.nbytes() > 0:
        _p_assert(
            tensor.storage_offset() == 0,
            "Freeing a tensor's storage is unsafe when it is not the sole occupant\n"
            f"storage offset: {tensor.storage_offset()}\nstorage size: {storage.nbytes()}\n"
            f"tensor shape: {tensor.shape}",
        )
        storage.resize_(0)


def _data_ptr_allocated(tensor: Tensor) -> bool:
    """Return True if a tensor has memory."""
    return tensor.untyped_storage().nbytes() > 0


def _sync_params_and_buffers(
    process_group: Any, module_states: list[Tensor], broadcast_bucket_size: int, src: int
) -> None:
    """Copy tensors of rank `src` of a group to all its ranks."""
    if module_states:
        _broadcast_coalesced(process_group, module_states, broadcast_bucket_size, src)


def _replace_by_prefix(state_dict: dict[str, Any], old_prefix: str, new_prefix: str) -> None:
    """Rename the keys of a dictionary that begin with a prefix.

    Raises:
        ValueError: If the prefixes are equal.
    """
    if old_prefix == new_prefix:
        raise ValueError("old_prefix and new_prefix must be distinct")
    for key in list(state_dict):
        if key.startswith(old_prefix):
            state_dict[new_prefix + key[len(old_prefix) :]] = state_dict.pop(key)


def _get_root_modules(modules: Sequence[Module]) -> list[Module]:
    """Return the modules that are in no other module of the sequence."""
    inner: dict[Module, Collection[Module]] = {each: set(each.modules()) for each in modules}
    return [
        each for each in modules if not any(each in inner[other] for other in modules if other is not each)
    ]


explain_absent_names(globals(), "torch.distributed.utils")
