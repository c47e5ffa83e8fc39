"""`Reducer`: averages gradients over a group while the backward pass still computes other gradients.

# Note [How gradients are reduced]
Each parameter's leaf notifies the reducer when its gradient has been accumulated. When a bucket has all of its
gradients, one launch copies them into the bucket's flat tensor, divided by the number of ranks. The tensor is summed
over the group on the group's own stream, concurrently with the rest of backward. All ranks reduce buckets in the same
order, so a full bucket waits for earlier ones. After backward the current stream waits for the reductions, and one
launch per bucket copies the averages back into the gradients. With `gradient_as_bucket_view` the gradients are parts of
the flat tensor, so nothing is copied back.

The first buckets follow the reverse order of registration. The first backward shows the order in which gradients
really arrive. Rank 0 sends that order to the other ranks, and all rebuild the buckets in it (`_rebuild_buckets`).

Streams: gradients of one bucket may be accumulated on different streams. The bucket's launch waits for all of them.
Averages are copied back on the caller's stream, before the next backward's launches.

# Note [Parameters without gradients]
`find_unused_parameters`: before backward, parameters that the outputs do not depend on are marked as ready and
contribute zeros. A parameter that no rank used keeps its previous gradient. The ranks exchange a map of used
parameters to find out, which the host reads only if this rank has an unused parameter. `static_graph`: the first
backward shows which parameters are used and how often; its gradients are reduced at its end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any
from warnings import warn

from flambeau.core.device import device
from flambeau.core.dtype import int32
from flambeau.core.errors import NotSupportedError
from flambeau.distributed.ddp.buckets import Bucket, GradBucket, assign, copy_all
from flambeau.distributed.ddp.reducer_errors import (
    HIGHER_ORDER,
    NONE_UNUSED,
    STARTED,
    UNUSED_BEFORE,
    already_marked,
    not_finished,
)
from flambeau.distributed.ddp.replicas import reduce_in_place, same_buckets
from flambeau.runtime import current
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tape.autograd_node import Node
from flambeau.tape.mode import mode, recording
from flambeau.tensor.autograd.autograd_meta import edge_of
from flambeau.tensor.exchange.data import tensor as new_tensor
from flambeau.tensor.tensor import Tensor

FIRST_BUCKET_BYTES = 1024 * 1024
BUCKET_BYTES = 25 * 1024 * 1024

Hook = Callable[[Any, GradBucket], Any]


class UsedParameters:
    """The parameters that this rank used since the last reduction, and those of all ranks after an exchange.

    Attributes:
        marks: For each parameter, 0 if it was not used.
        exchange: The pending sum of the ranks' marks with its tensor; None if there is none.
    """

    __slots__ = ("exchange", "marks")

    def __init__(self, count: int) -> None:
        self.marks = [0] * count
        self.exchange: tuple[Any, Any] | None = None

    def clear(self) -> None:
        self.marks = [0] * len(self.marks)

    def mark_all_but(self, absent: set[int]) -> None:
        self.marks = [int(mark or i not in absent) for i, mark in enumerate(self.marks)]

    def counts(self, where: device) -> Any:
        """Return the marks as an int32 tensor."""
        return new_tensor(self.marks, dtype=int32, device=where)

    def start_exchange(self, group: Any, where: device) -> None:
        """Start to sum the marks over the ranks of a group."""
        counts = self.counts(where)
        self.exchange = (reduce_in_place(group, counts, async_op=True), counts)

    def end_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange[0].wait()
            self.exchange = None

    def is_used(self, index: int) -> bool:
        """Return True if any rank used a parameter. Waits for the other ranks' marks if this rank did not use it."""
        if not self.marks[index] and self.exchange is not None:
            work, counts = self.exchange
            work.wait()
            self.marks, self.exchange = counts.tolist(), None
        return bool(self.marks[index])


class Reducer:
    """An object that averages gradients over a group's ranks. See Note [How gradients are reduced].

    Args:
        bucket_indices: The parameters of each initial bucket, in the order of reduction.
        per_bucket_size_limits: The limit of each initial bucket in bytes.
        bucket_bytes_cap, first_bucket_bytes_cap: Limits of the buckets that are built after the first backward.
        bucket_bytes_cap_list: A limit for each of these buckets instead.
        param_to_name_mapping: Index -> parameter name, for messages.
        skip_all_reduce_unused_params: With `find_unused_parameters`: do not reduce a bucket that no rank has used.
        batched_grad_copy: No effect; gradients are always copied one bucket at a time.

    Raises:
        RuntimeError: If there are no parameters.
        NotSupportedError: If a gradient is expected to be sparse.
    """

    def __init__(
        self,
        params: Sequence[Any],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = BUCKET_BYTES,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: dict[int, str] | None = None,
        first_bucket_bytes_cap: int = FIRST_BUCKET_BYTES,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Sequence[int] = (),
        batched_grad_copy: bool = False,
    ) -> None:
        if not params:
            raise RuntimeError("Expected at least one parameter.")
        if any(expect_sparse_gradients):
            raise NotSupportedError("sparse gradients: Flambeau reduces dense gradients only")
        self.params, self.group, self.names = list(params), process_group, param_to_name_mapping or {}
        self.find_unused, self.as_views = find_unused_parameters, gradient_as_bucket_view
        self.skips_unused = skip_all_reduce_unused_params
        self.limits = list(bucket_bytes_cap_list) or [first_bucket_bytes_cap, bucket_bytes_cap]
        self.static = False
        self._hook: Hook | None = None
        self._hook_state: Any = None
        self._rebuilt = False
        self._order: list[int] = []  # parameters in the order of their gradients, until buckets are rebuilt
        self._walks = 0  # number of reduced backward passes
        self._visits = [0] * len(self.params)  # visits of each leaf in the first backward of a static graph
        self._unused: list[int] = []
        self._used = UsedParameters(len(self.params))
        self._warned = self._warned_order = False
        self._futures: list[Any] = []
        self._joined: tuple[Any, bool] | None = None
        self.before_giving_back: Callable[[], None] = lambda: None
        self._reset_state()
        self._lay_out(bucket_indices, per_bucket_size_limits)
        self._watch()

    def _watch(self) -> None:
        """Install a hook on each parameter. Hooks refer weakly to the reducer, so parameters do not keep the reducer
        alive.
        """
        self._leaves = [edge_of(p)[0] for p in self.params]  # type: ignore[index]
        me = weakref.ref(self)

        def hook_of(index: int) -> Callable[..., None]:
            def hook(given: Any, got: Any) -> None:
                reducer = me()
                if reducer is not None:
                    reducer._autograd_hook(index)

            return hook

        self._handles = [leaf.register_hook(hook_of(i)) for i, leaf in enumerate(self._leaves)]

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __del__(self) -> None:
        if "_handles" in self.__dict__:
            self._remove_autograd_hooks()

    def _lay_out(self, indices: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
        self.buckets = [
            Bucket(some, [self.params[i] for i in some], limit)
            for some, limit in zip(indices, limits, strict=True)
        ]
        self._bucket_of = {i: n for n, bucket in enumerate(self.buckets) for i in bucket.indices}

    # -- before forward and backward ------------------------------------------------------------------------

    @property
    def seen(self) -> bool:
        """Return True if a backward has been reduced."""
        return self._walks > 0

    def prepare_for_forward(self) -> None:
        """Prepare for a forward whose gradients will be reduced."""

    def _rebuild_buckets(self) -> bool:
        """Rebuild the buckets in the order in which gradients arrived. Returns True if it did.

        Raises:
            RuntimeError: If the previous backward did not produce a gradient for every parameter.
        """
        self._require_finished()
        if not self._may_rebuild() or not self._order:
            return False
        come = set(self._order)
        order = self._order + [i for i in range(len(self.params)) if i not in come]
        indices, limits = assign([self.params[i] for i in order], self.limits, (), order)
        indices, limits = same_buckets(self.group, indices, limits, self.buckets[0].device)
        self._rebuilt, self._order = True, []
        self._lay_out(indices, limits)
        return True

    def _may_rebuild(self) -> bool:
        return not self._rebuilt and (self.static or not self.find_unused)

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """Prepare for a backward pass: expect a gradient of each parameter, or of each that `outputs` depend on."""
        self._begin()
        if not self._seeks:
            return
        reached = _leaves_behind(outputs)
        self._unused = [i for i, leaf in enumerate(self._leaves) if leaf not in reached]
        if not self._unused and not self._warned:
            self._warned = True
            warn(NONE_UNUSED, stacklevel=4)

    def _begin(self) -> None:
        self._next = 0
        self._marked: set[int] = set()
        self._divisor = 0
        self._unused_marked = False
        self._left = list(self._visits)
        for bucket in self.buckets:
            bucket.reset()
        self._expecting = True

    def _reset_state(self) -> None:
        """Discard the state of a backward pass that has not finished."""
        self._expecting = self._unfinished = False
        self._unused_marked = False
        self._marked, self._next, self._divisor = set(), 0, 0
        self._left = list(self._visits)
        self._used.exchange = None
        for bucket in getattr(self, "buckets", ()):
            bucket.reset()

    def _require_finished(self) -> None:
        if self._unfinished:
            left = [i for i in range(len(self.params)) if i not in self._marked]
            raise RuntimeError(not_finished(self._rank, left, self.names, self.find_unused, self.static))

    def _check_reducer_finalized(self) -> None:
        """Raise RuntimeError if the last backward left a gradient unreduced."""
        self._require_finished()

    @property
    def _rank(self) -> int:
        return self.group.rank()

    # -- while backward runs --------------------------------------------------------------------------------

    def _autograd_hook(self, index: int) -> None:
        """Handle that backward is done with a parameter's leaf, with or without a gradient."""
        first = self.static and not self._walks
        if (first or self._seeks) and self.params[index].grad is not None:
            self._used.marks[index] = 1  # also under `no_sync`: accumulated gradients are reduced later
        if not self._expecting:
            return
        if mode.recording and not self._warned_order:
            self._warned_order = True
            warn(HIGHER_ORDER, stacklevel=2)
        if first:
            self._visits[index] += 1
            return
        if not self._unused_marked:
            self._mark_unused()
        if self.static:
            if not self._left[index]:
                raise RuntimeError(UNUSED_BEFORE)
            self._left[index] -= 1
            if self._left[index]:
                return
        self._mark(index)

    @property
    def _seeks(self) -> bool:
        """Return True if each forward may use different parameters."""
        return self.find_unused and not self.static

    def _mark_unused(self) -> None:
        """Mark the parameters that will get no gradient as ready, when the first gradient arrives."""
        self._unused_marked = True
        # the map decides what is reduced, so it is sent first and must include later uses
        if self.skips_unused:
            self._used.mark_all_but(set(self._unused))
            self._exchange_used()
        for index in self._unused:
            self._mark(index)

    def _mark(self, index: int) -> None:
        """Mark one gradient as ready, and reduce the complete buckets in order."""
        if index in self._marked:
            raise RuntimeError(already_marked(index, self.names))
        self._marked.add(index)
        self._unfinished = True
        if not self._rebuilt and self._may_rebuild():
            self._order.append(index)
        bucket = self.buckets[self._bucket_of[index]]
        _note_stream(bucket)
        bucket.pending -= 1
        if not bucket.pending:
            self._reduce_ready()

    def _reduce_ready(self) -> None:
        count = len(self.buckets)
        while self._next < count and not self.buckets[self._next].pending:
            self._reduce(self._next)
            self._next += 1
        if self._next == count:  # after all buckets, which is the same point on all ranks
            if self._seeks and not self.skips_unused:
                self._exchange_used()
            mode.engine.final_callbacks.append(self._finalize)

    def _reduce(self, number: int) -> None:
        """Fill a bucket's flat tensor with its gradients and start its reduction."""
        bucket = self.buckets[number]
        with recording(False):
            if self.skips_unused and all(self._is_unused(i) for i in bucket.indices):
                return
            self._fill(bucket)
            if self._hook is None:
                bucket.outcome = reduce_in_place(self.group, bucket.flat, async_op=True)
            else:
                bucket.outcome = self._run_comm_hook(
                    GradBucket(number, len(self.buckets), bucket.flat, bucket)
                )

    def _fill(self, bucket: Bucket) -> None:
        """Copy gradients into the flat tensor: zeros where there is none, divided unless a hook divides them."""
        _gather_streams(bucket)
        share = None if self._hook is not None else 1 / self.divisor
        views, grads = [], []  # gradients outside of the flat tensor, and their places in it
        old = []  # views that contain their gradients already
        as_views = self.as_views
        for p, view in zip(bucket.params, bucket.views, strict=True):
            grad = p.grad
            if grad is None:
                view.zero_()
            elif as_views and grad.ptr == view.ptr:
                old.append(view)
            else:
                views.append(view)
                grads.append(grad)
                # otherwise it keeps the narrow dtype until backward ends
                if as_views and grad.dtype is view.dtype:
                    p.grad = view
        if share is not None and old:
            for part in [bucket.flat] if len(old) == len(bucket.params) else old:
                part.div_(self.divisor)
        copy_all(views, grads, share)

    @property
    def divisor(self) -> int:
        """Return the number of ranks that take part, which is determined once for each backward pass."""
        if not self._divisor:
            self._divisor = self.group.size()
            if self._joined is not None and not self._joined[1]:
                work, _ = self._joined
                work.wait()
                self._divisor = int(work.result()[0].item())
        return self._divisor

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None:
        """Divide by the number that `work` computes, or by the number of ranks."""
        self._joined = (work, use_static_world_size)

    # -- when backward is over ------------------------------------------------------------------------------

    def _finalize(self) -> None:
        """Make the current streams wait for the reductions, and copy the averages to the parameters' gradients."""
        self.before_giving_back()
        with recording(False):
            for future in self._futures:
                future.wait()
            self._futures = []
            for bucket in self.buckets:
                self._give_back(bucket)
        self._used.end_exchange()
        if not self.static:
            self._used.clear()
        self._walks += 1
        self._expecting = self._unfinished = False
        self._joined = None

    def _give_back(self, bucket: Bucket) -> None:
        if bucket.outcome is None:  # no rank used any parameter of the bucket
            return
        result = _tensor_of(bucket.outcome.wait(), bucket.flat)
        bucket.outcome = None
        if self.as_views:
            if result.ptr != bucket.flat.ptr:
                bucket.flat.copy_(result)
            views = bucket.views
        else:
            views = bucket.views if result is bucket.flat else bucket.views_of(result)
        targets, sources = [], []
        all_used = not (self.find_unused or self.static)
        for index, p, view in zip(bucket.indices, bucket.params, views, strict=True):
            if not all_used and self._is_unused(index):
                continue
            grad = p.grad
            if self.as_views:
                if grad is None or grad.ptr != view.ptr:
                    p.grad = view
            elif grad is None:
                p.grad = view.clone()
            else:
                targets.append(grad)
                sources.append(view)
        copy_all(targets, sources)

    # -- parameters that were not used ----------------------------------------------------------------------

    def _exchange_used(self) -> None:
        with recording(False):
            self._used.start_exchange(self.group, self.buckets[0].device)

    def _get_local_used_map(self) -> Any:
        """Return an int32 tensor: 1 for each parameter that this rank has used since the last reduction."""
        return self._used.counts(self.buckets[0].device)

    def _is_unused(self, index: int) -> bool:
        """Return True if no rank has used a parameter, which may wait for the other ranks."""
        return (self.find_unused or self.static) and not self._used.is_used(index)

    def _set_static_graph(self) -> None:
        """Declare that every backward visits equal leaves equally often. Raises RuntimeError after a backward."""
        if self._walks:
            raise RuntimeError(STARTED)
        self.static = True

    def _delay_all_reduce(self) -> None:
        """Reduce everything, after the first backward of a static graph."""
        if not self._expecting:
            return
        self._unused = [i for i, visits in enumerate(self._visits) if not visits]
        self._marked = set(range(len(self.params)))
        self._exchange_used()
        for number in range(len(self.buckets)):
            self._reduce(number)
        self._finalize()

    def _ddp_graph_static(self) -> bool:
        """Return True if every backward pass so far visited the same leaves."""
        return self.static or self._rebuilt

    # -- hooks ----------------------------------------------------------------------------------------------

    def _register(self, state: Any, hook: Hook, call: str, other: str) -> None:
        if self._hook is not None:
            raise RuntimeError(f"{call} or {other} can only be called once.")
        self._hook, self._hook_state = hook, state

    def _run_comm_hook(self, bucket: GradBucket) -> Any:
        """Start the reduction of a bucket by the hook, or as a sum without a hook."""
        if self._hook is None:
            return self._run_allreduce_hook(bucket)
        outcome = self._hook(self._hook_state, bucket)
        if not hasattr(outcome, "wait"):
            raise RuntimeError(
                "DDP communication hook's callback must return a torch.futures.Future object, but got "
                f"{type(outcome).__module__}.{type(outcome).__qualname__}"
            )
        return outcome

    def _run_allreduce_hook(self, bucket: GradBucket) -> Any:
        return reduce_in_place(self.group, bucket.buffer(), async_op=True).get_future()

    def _install_post_backward_futures(self, futures: Sequence[Any]) -> None:
        """Add futures that the end of backward waits for."""
        self._futures += futures

    # -- for ranks that have no more inputs: `join` ---------------------------------------------------------

    def _get_zeros_like_grad_buckets(self) -> list[GradBucket]:
        """Return the buckets as this rank would reduce them, with zeros in place of gradients."""
        count = len(self.buckets)
        return [GradBucket(n, count, b.new_flat().zero_(), b) for n, b in enumerate(self.buckets)]

    def _reduce_zeros(self) -> None:
        """Take part in the reductions of one backward with zeros."""
        with recording(False):
            for outcome in [self._run_comm_hook(bucket) for bucket in self._get_zeros_like_grad_buckets()]:
                outcome.wait()
            if self._seeks:
                reduce_in_place(self.group, self._get_local_used_map())
        self._push_all_rebuilt_params()

    def _push_all_rebuilt_params(self) -> None:
        """Record every parameter as ready in any order. Another rank will send the real order."""
        if self._may_rebuild():
            self._order = list(range(len(self.params)))

    def _update_process_group(self, new_process_group: Any) -> None:
        """Reduce over another group from now on."""
        self.group = new_process_group
        self._rebuilt, self._order = False, []


def _note_stream(bucket: Bucket) -> None:
    """Remember the stream on which a gradient was accumulated."""
    index = bucket.device.index
    if index is not None:
        stream = current.local.streams[index]
        if stream not in bucket.streams:
            bucket.streams.append(stream)


def _gather_streams(bucket: Bucket) -> None:
    """Make the current stream wait for the streams on which the bucket's gradients were accumulated.

    The gradients' memory belongs to those streams, so its use by the current stream is recorded.
    """
    index = bucket.device.index
    if index is None:
        return
    here = current.local.streams[index]
    others = [stream for stream in bucket.streams if stream is not here and stream != here]
    for stream in others:
        with wait_reason(str, "DDP: the bucket's gradients were accumulated on another stream"):
            here.wait_stream(stream)
    if others:
        for p in bucket.params:
            if p.grad is not None:
                p.grad.record_stream(here)


def _leaves_behind(outputs: Sequence[Any]) -> set[Node]:
    """Return the nodes that gradients of these tensors reach."""
    stack = [edge[0] for edge in map(edge_of, outputs) if edge is not None]
    seen = set(stack)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return seen


def _tensor_of(value: Any, flat: Any) -> Any:
    """Return the result of a reduction: `flat` for a work, else the value of the hook's future."""
    if value is True:
        return flat
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise RuntimeError(
            f"expected the hook result is either a Tensor or a TensorList found {type(value).__name__}"
        )
    return value
