"""`DistributedDataParallel`: one module on every rank, whose gradients are averaged during backward.

See Note [How gradients are reduced] in `distributed/ddp/reducer.py`.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn
from warnings import warn

from flambeau.core.device import device as Device
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.join import Join, Joinable, JoinHook
from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.ddp.buckets import GradBucket, assign
from flambeau.distributed.ddp.comm_hooks import _register_builtin_comm_hook
from flambeau.distributed.ddp.reducer import FIRST_BUCKET_BYTES, Reducer
from flambeau.distributed.ddp.replicas import (
    _broadcast_coalesced,
    _sync_module_states,
    _verify_params_across_processes,
    reduce_in_place,
)
from flambeau.distributed.future import Future
from flambeau.distributed.world import NON_GROUP_MEMBER, world
from flambeau.nn.modules.batchnorm import SyncBatchNorm
from flambeau.nn.modules.module import Module
from flambeau.nn.parallel.containers import cast, move_members
from flambeau.nn.parallel.delayed import Delayed
from flambeau.nn.parallel.mixed_precision import NarrowParameters, _MixedPrecision
from flambeau.nn.parallel.module_devices import placement_of
from flambeau.nn.parallel.scatter_gather import gather, scatter_kwargs
from flambeau.nn.parallel.sink import through_sink
from flambeau.nn.parameter import UninitializedParameter
from flambeau.runtime.hooks import annotations
from flambeau.tape.mode import mode, recording
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.exchange.data import tensor as new_tensor
from flambeau.tensor.functions.creation import ones, zeros
from flambeau.tensor.tensor import Tensor

__all__ = ["DistributedDataParallel"]

explain_absent_names(globals(), "torch.nn.parallel.distributed")

_MIB = 1024 * 1024
_DEFAULT_BUCKET_CAP_MB = 25
_STATES_BYTES = 250 * _MIB  # bytes of parameters and buffers in one message


class _BufferCommHookLocation(Enum):
    PRE_FORWARD = auto()
    POST_FORWARD = auto()


@dataclass
class _BufferCommHook:
    buffer_comm_hook: Callable[..., Any]
    buffer_comm_hook_state: Any
    buffer_comm_hook_location: _BufferCommHookLocation


def _check(group: Any, flags: Sequence[Any]) -> None:
    """Raise TypeError where the group is none, or a flag is not a truth value: "False" would pass for True."""
    collective_checks.process_group(group, "process_group")
    for flag in flags:
        if not isinstance(flag, bool | int | float | None):
            raise TypeError(
                f"a flag of DistributedDataParallel must be a bool, not {type(flag).__name__}: {flag!r}"
            )


def _check_parameters(params: Sequence[Any], delayed: Sequence[Any]) -> None:
    """Raise RuntimeError if no parameter needs a reduction, or a parameter is not initialized yet."""
    if not delayed and not any(p.requires_grad for p in params):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        )
    if any(isinstance(p, UninitializedParameter) for p in params):
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DistributedDataParallel`. Run a dummy forward "
            "pass to correctly initialize the modules"
        )


class DistributedDataParallel(Module, Joinable):
    """A copy of `module` on every rank of a group. Each rank has a separate batch; gradients are averaged over the
    ranks.

    The constructor compares the parameters of all ranks and copies rank 0's parameters and buffers to the others. Then
    parameters stay bitwise equal if every rank makes equal steps. Each forward copies rank 0's buffers.

    Args:
        device_ids: None, or the one device of the module, to which inputs are moved.
        output_device: The device of the outputs.
        forward_sync_buffers: Copy rank 0's buffers before each forward; default True.
        broadcast_buffers: Like forward_sync_buffers, and also in the constructor (deprecated).
        init_sync: Compare parameters and copy rank 0's in the constructor.
        process_group: The group; default: all ranks.
        device_mesh: Instead of the group, a mesh of one dimension: `mesh["dp"]`.
        bucket_cap_mb: MiB of gradients that are reduced together; default 25, the first bucket 1.
        bucket_cap_mb_list: This limit for each bucket.
        find_unused_parameters: Parameters that a forward does not use contribute zeros.
        gradient_as_bucket_view: Gradients are parts of the buckets, which saves memory and copies.
        static_graph: Every iteration uses the same parameters, equally often.
        delay_all_reduce_named_params, param_to_hook_all_reduce: Parameters that are reduced together when the gradient
            of another parameter has been accumulated.
        mixed_precision: Dtypes of computation and reduction.
        skip_all_reduce_unused_params: With `find_unused_parameters`: do not reduce buckets that no rank used.
        batched_grad_copy: No effect; gradients are always copied one bucket at a time.

    Raises:
        RuntimeError: By the constructor, if no parameter requires a gradient, a parameter is not initialized, or
            parameters differ from those of other ranks. By a call, if the last backward did not compute every gradient.
        ValueError: By the constructor, if devices do not match.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: _MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[int] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        if (delay_all_reduce_named_params is None) != (param_to_hook_all_reduce is None):
            raise ValueError(
                "delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time."
            )
        if device_mesh is not None:
            process_group = self._group_of(device_mesh, process_group)
        self.process_group = world().require_default() if process_group is None else process_group
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        delayed = list(delay_all_reduce_named_params or ())
        self.parameters_to_ignore |= {name for name, _ in delayed}
        self._module_parameters = [
            p for name, p in module.named_parameters() if name not in self.parameters_to_ignore
        ]
        _check_parameters(self._module_parameters, delayed)
        self._place(self._module_parameters or [p for _, p in delayed], device_ids, output_device)
        self.static_graph = False
        self.dim, self.module = dim, module
        init_sync_buffers = self._choose_buffers(broadcast_buffers, forward_sync_buffers)
        self.find_unused_parameters = find_unused_parameters
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.batched_grad_copy = batched_grad_copy
        self.mixed_precision = mixed_precision
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        if check_reduction:
            warn(_NO_CHECK, FutureWarning, stacklevel=2)
        self.broadcast_bucket_size = _STATES_BYTES
        self._choose_caps(bucket_cap_mb, bucket_cap_mb_list)
        self._delayed: Delayed | None = None
        if delayed:
            self._delayed = Delayed(self, [p for _, p in delayed], param_to_hook_all_reduce, _STATES_BYTES)
        self._ddp_sink_clone = True
        self._divide_by_initial_world_size = True
        self.reducer: Any = None
        self._narrow: NarrowParameters | None = None
        params = self._build_params_for_reducer()
        if not params:  # all of them are delayed
            return
        _check(
            self.process_group,
            (find_unused_parameters, gradient_as_bucket_view, static_graph, broadcast_buffers),
        )
        if init_sync:
            _verify_params_across_processes(self.process_group, params)
            self._give_states(0, init_sync_buffers)
        self._make_reducer(params, static_graph)
        if mixed_precision is not None:
            self._compute_narrow(mixed_precision)
        if static_graph:
            self._set_static_graph()

    # -- what it is made of ---------------------------------------------------------------------------------

    def _group_of(self, mesh: Any, group: Any) -> Any:
        """Return the group of a one-dimensional mesh, and store the mesh.

        Raises:
            RuntimeError: If the mesh has several dimensions, or there is a `group`.
        """
        if group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {mesh}.")
        self.device_mesh = mesh
        return mesh.get_group(mesh_dim=0)

    def _place(self, params: Sequence[Any], device_ids: Any, output_device: Any) -> None:
        """Decide where inputs go."""
        placed = placement_of(params, device_ids, output_device)
        self.device, self.device_type = placed.device, placed.device.type
        self.is_multi_device_module = placed.several
        self.device_ids, self.output_device = placed.device_ids, placed.output

    def _choose_buffers(self, broadcast: bool | None, forward: bool | None) -> bool:
        """Decide when buffers are synchronized. Returns True if the constructor does."""
        if broadcast is not None:
            warn(
                _BOTH_NAMES if forward is not None else _OLD_NAME,
                FutureWarning,
                stacklevel=3,
            )
        if forward is not None:
            self.forward_sync_buffers = forward
            return True
        self.forward_sync_buffers = True if broadcast is None else broadcast
        return self.forward_sync_buffers

    @property
    def broadcast_buffers(self) -> bool:
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    def _choose_caps(self, cap: float | None, caps: Sequence[float] | None) -> None:
        self.bucket_bytes_cap_list = [int(mib * _MIB) for mib in caps or ()]
        self.bucket_bytes_cap_default = cap is None and not caps
        mib = max(caps) if caps else _DEFAULT_BUCKET_CAP_MB if cap is None else cap
        self.bucket_bytes_cap = int(mib * _MIB)

    def _build_params_for_reducer(self) -> list[Any]:
        """Return the parameters whose gradients are reduced, without duplicates, in the order of modules."""
        found: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        for prefix, module in self.module.named_modules():
            for name, p in module.named_parameters(recurse=False):
                full = f"{prefix}.{name}"
                if not p.requires_grad or {full, full.lstrip(".")} & self.parameters_to_ignore:
                    continue
                if id(p) not in found:
                    self._names[len(found)] = full
                found.setdefault(id(p), p)
        self._assign_modules_buffers()
        return list(found.values())

    def _assign_modules_buffers(self) -> None:
        """Read the buffers again, because a forward may have replaced them."""
        self.named_module_buffers = {
            name: b for name, b in self.module.named_buffers() if name not in self.parameters_to_ignore
        }
        self.modules_buffers = list(self.named_module_buffers.values())

    def _make_reducer(self, params: list[Any], static_graph: bool) -> None:
        first = FIRST_BUCKET_BYTES if self.bucket_bytes_cap_default else self.bucket_bytes_cap
        if self.bucket_bytes_cap_list:
            caps = self.bucket_bytes_cap_list
        elif static_graph or not self.find_unused_parameters:
            caps = [sys.maxsize]  # a single bucket until the order of gradients is known
        else:
            caps = (
                [first, self.bucket_bytes_cap] if first < self.bucket_bytes_cap else [self.bucket_bytes_cap]
            )
        indices, limits = assign(params, caps)
        self.reducer = Reducer(
            params, indices[::-1], limits[::-1], self.process_group, (), self.bucket_bytes_cap,
            self.find_unused_parameters, self.gradient_as_bucket_view, self._names, first,
            self.skip_all_reduce_unused_params, False, self.bucket_bytes_cap_list,
        )  # fmt: skip
        self._has_rebuilt_buckets = False
        if self.device_type == "cpu" and any(isinstance(m, SyncBatchNorm) for m in self.module.modules()):
            raise ValueError("SyncBatchNorm layers only work with GPU modules")

    def _compute_narrow(self, config: _MixedPrecision) -> None:
        if config.buffer_dtype is not None:
            for b in self.modules_buffers:
                if b.is_floating_point():
                    b.data = b.to(config.buffer_dtype)
        self._narrow = NarrowParameters(
            [p for p in self._module_parameters if not hasattr(p, "_ddp_ignored")], config
        )
        self.reducer.before_giving_back = self._narrow.widen
        if config.param_dtype is not None or config.reduce_dtype is not None:
            self.register_comm_hook(self.reducer, self._narrow.reduce_bucket)

    def __getstate__(self) -> dict[str, Any]:
        self._check_default_group()
        state = copy.copy(self.__dict__)
        for name in ("process_group", "reducer", "_narrow"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = world().require_default()
        super().__setstate__(state)
        self._narrow = None
        self._make_reducer(self._build_params_for_reducer(), self.static_graph)
        if self.static_graph:
            self.reducer._set_static_graph()
        if self.mixed_precision is not None:
            self._compute_narrow(self.mixed_precision)

    def _check_default_group(self) -> None:
        try:
            default = self.process_group == world().require_default()
        except (RuntimeError, ValueError):
            default = False
        if not default:
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default process group. That is, "
                "when you have called init_process_group and have not passed process_group argument to DDP constructor"
            )

    # -- forward --------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        annotations.push("DistributedDataParallel.forward")
        try:
            inputs, kwargs = self._pre_forward(*inputs, **kwargs)
            return self._post_forward(self.module(*inputs, **kwargs))
        finally:
            annotations.pop()

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self.reducer is None:
            return inputs, kwargs
        if mode.recording and self.require_backward_grad_sync:
            self.reducer.prepare_for_forward()
        work = Join.notify_join_context(self)
        if work:
            self.reducer._set_forward_pass_work_handle(work, self._divide_by_initial_world_size)
        if mode.recording and self.reducer._rebuild_buckets():
            self._has_rebuilt_buckets = True
        if self._check_sync_bufs_pre_fwd():
            self._sync_buffers()
        if self._join_config.enable:
            self._check_global_requires_backward_grad_sync(is_joined_rank=False)
        if self.device_ids:
            inputs, kwargs = move_members((inputs, kwargs), Device(self.device_type, self.device_ids[0]))
        if self._narrow is not None:
            self._narrow.narrow()
            inputs, kwargs = cast((inputs, kwargs), self._narrow.config.param_dtype)
        return inputs, kwargs

    def _post_forward(self, output: Any) -> Any:
        if self.reducer is None:
            self._clear_delayed()
            return output
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        self.require_forward_param_sync = mode.recording and self.require_backward_grad_sync
        if self.require_forward_param_sync:
            seeks = self.find_unused_parameters and not self.static_graph
            self.reducer.prepare_for_backward(list(tensors_in(output)) if seeks else [])
        if self._narrow is not None and not mode.recording:
            self._narrow.widen()
        if mode.recording and self._wants_sink():
            output = through_sink(self, output)
        self._clear_delayed()
        return output

    def _clear_delayed(self) -> None:
        if self._delayed is not None:
            self._delayed.clear()

    def _wants_sink(self) -> bool:
        """Return True if the start of backward must be hooked: to find unused outputs, or to trace the first
        iteration.
        """
        return not self.reducer.seen if self.static_graph else self.find_unused_parameters

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients inside the block without averaging them; the next backward pass outside averages."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # The steps of DataParallel, which old programs call.

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        return scatter_kwargs(inputs, kwargs, device_ids, dim=self.dim)

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: Any) -> Any:
        inputs, kwargs = move_members((inputs, kwargs), Device(self.device_type, device_id))
        return (inputs,), (kwargs,)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        return gather(outputs, output_device, dim=self.dim)

    # -- buffers and states ---------------------------------------------------------------------------------

    def will_sync_module_buffers(self) -> bool:
        """Return True if the next forward synchronizes buffers."""
        return bool(
            self.require_forward_param_sync and self.forward_sync_buffers and len(self.modules_buffers) > 0
        )

    def _hook_is(self, where: _BufferCommHookLocation) -> bool:
        hook = getattr(self, "buffer_hook", None)
        return (
            _BufferCommHookLocation.PRE_FORWARD if hook is None else hook.buffer_comm_hook_location
        ) is where

    def _check_sync_bufs_pre_fwd(self) -> bool:
        return self.will_sync_module_buffers() and self._hook_is(_BufferCommHookLocation.PRE_FORWARD)

    def _check_sync_bufs_post_fwd(self) -> bool:
        return self.will_sync_module_buffers() and self._hook_is(_BufferCommHookLocation.POST_FORWARD)

    def _sync_buffers(self) -> None:
        """Copy the buffers of rank 0, or under `join` of the last rank with inputs, to all ranks."""
        with recording(False):
            source = self._find_common_rank(self._distributed_rank, True) if self._join_config.enable else 0
            self._assign_modules_buffers()
            self._sync_module_buffers(source)

    def _sync_module_buffers(self, authoritative_rank: int) -> None:
        hook = getattr(self, "buffer_hook", None)
        if hook is None:
            self._default_broadcast_coalesced(authoritative_rank=authoritative_rank)
            return
        futures = hook.buffer_comm_hook(hook.buffer_comm_hook_state, self.named_module_buffers)
        if futures is not None:
            self.reducer._install_post_backward_futures(futures)

    def _default_broadcast_coalesced(
        self, bufs: Any = None, bucket_size: int | None = None, authoritative_rank: int = 0
    ) -> None:
        """Copy one rank's buffers, by default all of them, to all ranks."""
        self._distributed_broadcast_coalesced(
            self.modules_buffers if bufs is None else bufs,
            self.broadcast_bucket_size if bucket_size is None else bucket_size,
            authoritative_rank,
        )

    def _distributed_broadcast_coalesced(
        self, tensors: Any, buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        _broadcast_coalesced(self.process_group, tensors, buffer_size, authoritative_rank)

    def _give_states(self, source: int, buffers: bool) -> None:
        _sync_module_states(
            self.module,
            self.process_group,
            self.broadcast_bucket_size,
            source,
            self.parameters_to_ignore,
            buffers,
        )

    def _register_buffer_comm_hook(
        self,
        state: Any,
        hook: Callable[..., Any],
        comm_hook_location: _BufferCommHookLocation = _BufferCommHookLocation.POST_FORWARD,
    ) -> None:
        """Synchronize buffers by `hook(state, buffers by name)`; it may return futures, awaited after backward."""
        if not callable(hook):
            raise AssertionError(f"hook must be callable, got {type(hook).__name__}")
        self.buffer_hook = _BufferCommHook(hook, state, comm_hook_location)

    # -- uneven inputs --------------------------------------------------------------------------------------

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context manager for a loop whose number of iterations differs from rank to rank.

        Args:
            divide_by_initial_world_size: Divide by the number of all ranks; ranks that are done contribute zeros. False
                divides by the number of ranks that still have inputs.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the hook of a rank that is done; `divide_by_initial_world_size` as in `join`."""
        self._divide_by_initial_world_size = kwargs.get("divide_by_initial_world_size", True)
        return _DDPJoinHook(self)

    @property
    def join_device(self) -> Any:
        return self.device

    @property
    def join_process_group(self) -> Any:
        return self.process_group

    def _check_global_requires_backward_grad_sync(self, is_joined_rank: bool) -> bool | None:
        """Exchange with all ranks whether this backward is reduced. Ranks that are done contribute 0."""
        works = not is_joined_rank and self.require_backward_grad_sync
        flag = (ones if works else zeros)(1, device=self.device)
        work = reduce_in_place(self.process_group, flag, async_op=True)
        if not is_joined_rank:
            return None
        work.wait()
        return bool(flag.item() != 0)

    def _find_common_rank(self, input_rank: int, rank_cond: bool) -> int:
        """Return the highest rank for which the condition is true."""
        found = new_tensor([input_rank if rank_cond else -1], device=self.device)
        reduce_in_place(self.process_group, found, "max")
        rank = int(found.item())
        if rank == -1:
            raise ValueError(
                "BUG! Expected rank_cond to be true for at least one process. This indicates a bug in PyTorch, please "
                "report an issue."
            )
        return rank

    def _sync_final_model(self, is_last_joiner: bool) -> None:
        """Copy the state of a rank that ran most iterations to all ranks."""
        source = self._find_common_rank(self._distributed_rank, is_last_joiner)
        self._give_states(source, self.forward_sync_buffers)

    @property
    def _distributed_rank(self) -> int:
        return self.process_group.rank()

    # -- hooks ----------------------------------------------------------------------------------------------

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduce by `hook(state, bucket)`, which returns a future of the new values of the `dist.GradBucket`.

        The hook receives undivided gradients. Call this once, before backward.

        Raises:
            RuntimeError: If there is a hook already.
            TypeError: If the hook is not callable.
            ValueError: If its annotations have other types.
        """
        self._check_comm_hook(hook)
        self.reducer._register(state, hook, "register_comm_hook", "register_builtin_comm_hook")

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        """Reduce by a hook of `dist.BuiltinCommHookType`: ALLREDUCE or FP16_COMPRESS."""
        _register_builtin_comm_hook(self.reducer, comm_hook_type)

    def _register_fused_optim(
        self, optim: type, *args: Any, optim_params: Any = None, **kwargs: Any
    ) -> NoReturn:
        raise NotSupportedError("_register_fused_optim: Flambeau has no optimizers that step within backward")

    def _check_comm_hook(self, hook: Any) -> None:
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        signature = inspect.signature(hook)
        taken = signature.parameters["bucket"].annotation
        named = isinstance(taken, str) and "GradBucket" in taken  # the module keeps its annotations as text
        if taken not in (inspect.Parameter.empty, GradBucket) and not named:
            raise ValueError("Communication hook: bucket annotation should be dist.GradBucket.")
        given = signature.return_annotation
        if given is not inspect.Signature.empty and not _is_future_of_tensor(given):
            raise ValueError(
                "Communication hook: return annotation should be torch.futures.Future[torch.Tensor]."
            )

    # -- settings after construction ------------------------------------------------------------------------

    def _set_static_graph(self) -> None:
        """Behave as with `static_graph=True` from now on."""
        if self.static_graph:
            warn("You've set static_graph to be True, no need to set it again.", stacklevel=2)
            return
        self.reducer._set_static_graph()
        self.static_graph = True
        if self.find_unused_parameters:
            warn(
                "You passed find_unused_parameters=true to DistributedDataParallel, `_set_static_graph` will detect "
                "unused parameters automatically, so you do not need to set find_unused_parameters=true, just be sure "
                "these unused parameters will not change during training loop while calling `_set_static_graph`.",
                stacklevel=2,
            )

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Set whether outputs are copied for the autograd node after them. If False, the loss must not change them in
        place.
        """
        self._ddp_sink_clone = val

    def _remove_autograd_hooks(self) -> None:
        self.reducer._remove_autograd_hooks()

    def _check_reducer_finalized(self) -> None:
        """Raise RuntimeError unless the last backward reduced everything."""
        self.reducer._check_reducer_finalized()

    def _update_process_group(self, new_process_group: Any) -> None:
        """Reduce over another group from now on."""
        self._has_rebuilt_buckets = False
        self.reducer._reset_state()
        if new_process_group is not NON_GROUP_MEMBER:
            self.process_group = new_process_group
            self.reducer._update_process_group(new_process_group)

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Return the constructor's settings, and the composition of the buckets."""
        buckets = self.reducer.buckets
        return {
            "backend_name": self.process_group.name(),
            "module_name": type(self.module).__name__,
            "device_ids": ", ".join(map(str, self.device_ids or ())),
            "output_device": -1 if self.output_device is None else self.output_device,
            "dtypes": ", ".join(sorted({b.dtype.name for b in buckets})),
            "bucket_sizes": ", ".join(str(b.nbytes) for b in buckets),
            "bucket_cap_bytes": self.bucket_bytes_cap,
            "broadcast_buffers": int(self.forward_sync_buffers),
            "find_unused_parameters": int(self.find_unused_parameters),
            "gradient_as_bucket_view": int(self.gradient_as_bucket_view),
            "has_sync_bn": int(any(isinstance(m, SyncBatchNorm) for m in self.module.modules())),
            "is_multi_device_module": int(self.is_multi_device_module),
            "has_rebuilt_buckets": int(self._has_rebuilt_buckets),
            "num_parameter_tensors": len(self.reducer.params),
            "total_parameter_size_bytes": sum(b.nbytes for b in buckets),
            "rank": self._distributed_rank,
            "world_size": self.process_group.size(),
        }

    @staticmethod
    def _get_data_parallel_params(module: Module, named_params: bool = False) -> Iterator[Any]:
        """Yield the parameters, with their names, except those that are ignored."""
        for name, p in module.named_parameters():
            if not hasattr(p, "_ddp_ignored"):
                yield (name, p) if named_params else p

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: Module, params_and_buffers_to_ignore: Any
    ) -> None:
        """Exclude parameters and buffers by name from comparison, copies and reduction."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]
        for name, state in [*module.named_parameters(), *module.named_buffers()]:
            if name in params_and_buffers_to_ignore:
                state._ddp_ignored = True


class _DDPJoinHook(JoinHook):
    """The join hook that repeats the collectives of the other ranks' forward and backward."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp

    def main_hook(self) -> None:
        ddp, reducer = self.ddp, self.ddp.reducer
        reducer._rebuild_buckets()
        if ddp._check_sync_bufs_pre_fwd():
            ddp._sync_module_buffers(ddp._find_common_rank(ddp._distributed_rank, False))
        reduces = ddp._check_global_requires_backward_grad_sync(is_joined_rank=True)
        ddp.require_forward_param_sync = bool(reduces)
        if reduces:
            reducer._reduce_zeros()

    def post_hook(self, is_last_joiner: bool) -> None:
        self.ddp._sync_final_model(is_last_joiner)


def _is_future_of_tensor(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return "Future" in annotation
    return bool(annotation == Future[Tensor])


_BOTH_NAMES = (
    "Both `broadcast_buffers` and `forward_sync_buffers` were specified. `broadcast_buffers` is deprecated and its "
    "value is ignored when `forward_sync_buffers` is provided."
)
_NO_CHECK = (
    "The `check_reduction` argument in `DistributedDataParallel` module is deprecated. Please avoid using it."
)
_OLD_NAME = (
    "`broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead. IMPORTANT: unlike "
    "`broadcast_buffers=False`, `forward_sync_buffers=False` still syncs buffers at init. If you rely on buffers NOT "
    "being synced at init (e.g. rank-local buffers), keep using `broadcast_buffers=False` until `init_sync_buffers` "
    "is available."
)
