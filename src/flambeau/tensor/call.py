"""`call`: run an operator on tensors. The only caller of `driver.launch`, and the only reader of flags.

# Note [The plan cache]
A call is looked up by (operator, params, meta or scalar type of each input). The plan contains all decisions: metas of
the outputs, the device's allocator, the loaded executable. A call with a cached plan is therefore a dictionary lookup,
an allocation and a launch; the operator's rule, the promotion tables and the driver's `load` run only on a miss. Metas
are interned, so equal keys compare by identity. Flags that plans depend on select among caches when they change, so the
fast path never reads a flag. While a thread autocasts, the fast path finds no plan and calls go through the rules of
Note [Autocast]. The same holds inside of a dual level or a dispatch mode: see Note [Interception].

# Note [Specialized calls]
`binary`, `with_scalar` and `unary` repeat the fast path of `call` for a fixed number of operands, written by hand. The
loops of `call` over operands cost a fifth more (3.3 us instead of 2.7 us for `a + b` over null CUDA libraries). A
template that generates source would be as fast, but neither mypy nor ruff would read the result. What differs (keys,
scalars, which memory is shared) is half of the lines. A change of the fast path is made in all four functions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.device import device
from flambeau.core.dtype import BOOL, COMPLEX, FLOATING, INTEGRAL, can_cast, dtype, int64
from flambeau.core.errors import OutOfMemoryError, type_name
from flambeau.core.flags import flags
from flambeau.core.host.native import mypyc_attr
from flambeau.core.host_arrays import array_at
from flambeau.core.layout import is_dense, may_self_overlap
from flambeau.core.meta import Meta
from flambeau.core.tracing.plan_tree import Build, Untraceable
from flambeau.core.typeinfo import finfo
from flambeau.driver.protocol import Driver, Executable, Kernel, Launch, Launcher
from flambeau.ops.copy import checked_scalar, require_64_bits
from flambeau.ops.linalg.matmul import c_name, uses_tf32
from flambeau.ops.op import Op, Operand, Signature
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices.library_plans import cache_of
from flambeau.runtime.hooks import launch_deferral, launch_hooks
from flambeau.runtime.streams.stream import Stream
from flambeau.tape.mode import mode
from flambeau.tensor import autocast, interception, layout_functions
from flambeau.tensor.arguments.extents import require_backed
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.autograd.grad_validation import set_callers
from flambeau.tensor.autograd.in_place import begin_in_place, finish_in_place
from flambeau.tensor.autograd.inplace_checks import refuse_inference, require_changeable
from flambeau.tensor.autograd.recording import RecordPlan, begin_recording, finish_recording
from flambeau.tensor.storage import is_pending
from flambeau.tensor.structures import SeenKeys, Structures
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.tensor_core import StorageCore, TensorCore, make_in, use_on

_NO_OPERANDS = (tuple, list, dict, set, str, bytes, type(None), dtype, slice, range, type, device)
_GIANT = 1 << 30  # bytes of an output beyond which the device's memory is looked up
_LATER_ERRORS = (
    RuntimeError,
    IndexError,
    ValueError,
    ZeroDivisionError,
)  # PyTorch reports the target's faults first
_LIMIT = 8_192  # plans kept before the cache is cleared, which bounds programs with ever new shapes


@mypyc_attr(allow_interpreted_subclasses=True)  # so that `__new__` does not call `__init__`
class CallPlan:
    """A call with everything decided except addresses and scalar values."""

    __slots__ = (
        "allocate",
        "alone",
        "context",
        "executable",
        "index",
        "is_from_tree",
        "largest",
        "launch",
        "model",
        "more_outputs",
        "nbytes",
        "output",
        "outputs",
        "record_plan",
        "scalars",
        "tensors",
    )  # fmt: skip

    def __init__(self, context: Context, exe: Executable | None, signature: Signature) -> None:
        self.context = context
        self.is_from_tree = False
        self.model: CallPlan | None = None  # the plan of this structure that a tree adapts to shapes
        self.index = context.index
        self.allocate = context.allocator.allocate if exe is None else context.allocator.allocate_output
        self.launch = _launch_nothing if exe is None else _launcher(context.driver, exe)
        if exe is not None and exe.workspace:
            self.launch = partial(_launch_with_workspace, self.launch, context, exe.workspace)
        self.executable = exe
        self.outputs = signature.outputs
        self.output, *more = signature.outputs
        self.more_outputs = tuple(more)
        self.nbytes: Any = self.output.nbytes  # a symbol while a plan is traced
        self.record_plan: RecordPlan | None = None  # until a call is recorded
        self.alone: Launch | bool | None = (
            None  # what `_defer` collects; False: nothing; None: not decided yet
        )
        self.largest = -1  # bytes of the largest operand; -1: not computed yet
        inputs = tuple(enumerate(signature.inputs))
        self.tensors = tuple([i for i, x in inputs if isinstance(x, Meta)])
        self.scalars = tuple(
            [(i, _scalar_converter(x, i in signature.checked)) for i, x in inputs if not isinstance(x, Meta)]
        )

    def of_shape(self, launch: Launcher, outputs: tuple[Meta, ...]) -> CallPlan:
        """Return the plan with another launch and other outputs."""
        plan: CallPlan = _new_plan(CallPlan)
        plan.context = self.context
        plan.index = self.index
        plan.allocate = self.allocate
        plan.tensors = self.tensors
        plan.scalars = self.scalars
        plan.executable = plan.record_plan = plan.alone = None
        plan.is_from_tree = True
        plan.largest = -1
        plan.model = self
        plan.outputs = outputs
        plan.output = output = outputs[0]
        plan.nbytes = output.nbytes
        plan.more_outputs = outputs[1:]
        plan.launch = launch
        return plan


_new_plan = CallPlan.__new__
plans: dict[tuple[Any, ...], CallPlan] = {}
immediate: dict[tuple[Any, ...], CallPlan] = {}  # plans of calls that compiled functions never collect
fast_plans = plans  # where the warm path looks: see `_choose_fast_plans`
structures = Structures()  # where a call looks that has no plan
_caches: dict[tuple[Any, ...], tuple[dict[tuple[Any, ...], CallPlan], Structures]] = {
    flags.key(): (plans, structures)
}
_choice = threading.RLock()  # so that of two threads the later one's choice of tables holds
_NO_PLANS: dict[tuple[Any, ...], CallPlan] = {}
_least_nbytes = 0  # for which the table `immediate` holds
_seen = SeenKeys()  # keys that plans from trees served


_sleep_kernels: dict[device, Executable] = {}


def _flags_changed() -> None:
    launch_deferral.settle("a flag is changed")
    _choose_plans()


def _choose_plans() -> None:
    global plans, structures
    with _choice:
        plans, structures = _caches.setdefault(flags.key(), ({}, Structures()))
        immediate.clear()
        _choose_fast_plans()


def _choose_fast_plans() -> None:
    """Choose where the warm path looks. While launches are pending, or calls are intercepted, it finds nothing."""
    global fast_plans, _least_nbytes
    with _choice:
        if autocast.threads or interception.count or launch_deferral.pending is not None:
            fast_plans = _NO_PLANS
        elif not launch_deferral.open_regions:
            fast_plans = plans
        else:
            if _least_nbytes != launch_deferral.least_nbytes:
                _least_nbytes = launch_deferral.least_nbytes
                immediate.clear()
            fast_plans = immediate


def _forget_plans() -> None:
    immediate.clear()
    for cache, trees in _caches.values():
        cache.clear()
        trees.clear()
    _sleep_kernels.clear()


flags.subscribe(_flags_changed)
autocast.subscribe(_flags_changed)
interception.subscribe(_choose_fast_plans)
launch_deferral.subscribe(_choose_fast_plans)
system.on_close(_forget_plans)


def binary(op: Op, a: TensorCore, b: TensorCore) -> Any:
    """Run an operator on two tensors: `call(op, (a, b))`, specialized for the fast path of arithmetic."""
    plan = fast_plans.get((op, (), a.meta, b.meta))
    if plan is None:
        plan = _find_plan((op, (), a.meta, b.meta), (a, b))
    if plan is None or plan.scalars:
        return call(op, (a, b))
    node = None
    if (
        (a.history is not None or b.history is not None)
        and mode.recording
        and (requires_grad(a) or requires_grad(b))
    ):
        node = begin_recording(plan.record_plan or _make_record_plan(plan, op, (a, b), ()), (a, b))
    stream = current.local.streams[plan.index]
    handle = stream.handle
    first: StorageCore = a.memory
    second: StorageCore = b.memory
    if first.stream != handle or second.stream != handle:
        use_on(a, handle)
        use_on(b, handle)
    out: TensorCore = make_in(plan.allocate(plan.nbytes, stream), plan.output, plan.context)
    plan.launch((out.ptr, a.ptr, b.ptr), (), handle)
    stream.queue.busy = True  # see Note [Ticks] in runtime/streams/stream_order.py
    if node is not None:
        finish_recording(node, (out,))
    return out


def with_scalar(op: Op, a: TensorCore, value: Any) -> Any:
    """Run an operator on a tensor and a Python number: `call(op, (a, value))`, specialized."""
    plan = fast_plans.get((op, (), a.meta, value.__class__))
    if plan is None:
        plan = _find_plan((op, (), a.meta, value.__class__), (a, value))
        if plan is None:
            return call(op, (a, value))
    _, send = plan.scalars[0]
    number = send(value)
    node = None
    if a.history is not None and mode.recording and requires_grad(a):
        node = begin_recording(plan.record_plan or _make_record_plan(plan, op, (a, value), ()), (a, value))
    stream = current.local.streams[plan.index]
    handle = stream.handle
    memory: StorageCore = a.memory
    if memory.stream != handle:
        use_on(a, handle)
    out: TensorCore = make_in(plan.allocate(plan.nbytes, stream), plan.output, plan.context)
    plan.launch((out.ptr, a.ptr), (number,), handle)
    stream.queue.busy = True
    if node is not None:
        finish_recording(node, (out,))
    return out


def unary(op: Op, a: TensorCore, params: tuple[Any, ...] = ()) -> Any:
    """Run an operator on one tensor: `call(op, (a,), params)`, specialized."""
    plan = fast_plans.get((op, params, a.meta))
    if plan is None:
        plan = _find_plan((op, params, a.meta), (a,))
        if plan is None:
            return call(op, (a,), params)
    node = None
    if a.history is not None and mode.recording and requires_grad(a):
        node = begin_recording(plan.record_plan or _make_record_plan(plan, op, (a,), params), (a,))
    stream = current.local.streams[plan.index]
    handle = stream.handle
    memory: StorageCore = a.memory
    if memory.stream != handle:
        use_on(a, handle)
    out: TensorCore = make_in(plan.allocate(plan.nbytes, stream), plan.output, plan.context)
    if plan.more_outputs:
        results = (out, *_make_more_outputs(plan, stream))
        plan.launch((*[result.ptr for result in results], a.ptr), (), handle)
    else:
        results = (out,)
        plan.launch((out.ptr, a.ptr), (), handle)
    stream.queue.busy = True
    if node is not None:
        finish_recording(node, results)
    return results if plan.more_outputs else out


def _make_more_outputs(plan: CallPlan, stream: Stream) -> list[Any]:
    """Return new tensors for all outputs except the first. Separate, because a comprehension inside `unary` would slow
    it down.
    """
    return [make_in(plan.allocate(meta.nbytes, stream), meta, plan.context) for meta in plan.more_outputs]


autocast.launch_by(unary)


def call(op: Op, args: Sequence[Any], params: tuple[Any, ...] = ()) -> Any:
    """Run `op` on tensors and Python scalars. Returns a new tensor, or a tuple for several outputs.

    The launch goes to the current stream of the tensors' device. If a tensor requires a gradient, autograd records the
    call. Errors of the operator's rule are raised before anything is allocated or launched.
    """
    metas: list[Any] = []
    tracked = False
    for a in args:
        if isinstance(a, Tensor):
            metas.append(a.meta)
            if a.history is not None and requires_grad(a):
                tracked = True
        else:
            metas.append(a.__class__)
    key = (op, params, *metas)
    plan = fast_plans.get(key) or _find_plan(key, args)
    if plan is None:
        if autocast.threads and (cast := autocast.cast_inputs(op, args)) is not args:
            return call(op, cast, params)
        if interception.count and (seen := interception.intercept(op, args, params)) is not NotImplemented:
            return seen
        plan = plans.get(key)
        if plan is None:
            if layout_functions.any_sparse(args):
                return layout_functions.run_call(op, args, params)
            if any(isinstance(p, Tensor) for p in params):
                return call(op, args, _params_to_numbers(op, params))
            plan = _find_in_tree(key, args) or _make_plan(key, op, args, params)
        if launch_deferral.open_regions:
            deferred = _defer(key, plan, op, args, params, tracked)
            if deferred is not None:
                return deferred
    node = None
    if tracked and mode.recording:
        node = begin_recording(plan.record_plan or _make_record_plan(plan, op, args, params), args)
    stream = current.local.streams[plan.index]
    handle, context = stream.handle, plan.context
    result: TensorCore = make_in(plan.allocate(plan.nbytes, stream), plan.output, context)
    ptrs, results = [result.ptr], [result]
    for meta in plan.more_outputs:
        one: TensorCore = make_in(plan.allocate(meta.nbytes, stream), meta, context)
        ptrs.append(one.ptr)
        results.append(one)
    for i in plan.tensors:
        operand: TensorCore = args[i]
        memory: StorageCore = operand.memory
        if memory.stream != handle:
            use_on(operand, handle)
        ptrs.append(operand.ptr)
    plan.launch(ptrs, [send(args[i]) for i, send in plan.scalars] if plan.scalars else (), handle)
    stream.queue.busy = True
    if node is not None:
        finish_recording(node, results)
    return tuple(results) if plan.more_outputs else result


def _defer(
    key: tuple[Any, ...], plan: CallPlan, op: Op, args: Sequence[Any], params: tuple[Any, ...], tracked: bool
) -> Any:
    """Return a call's result if its launch or its parts can be deferred (Note [Deferred launches]), else None.

    None means that the caller launches now; all deferred launches have then been issued.
    """
    collecting = launch_deferral.collecting
    if not collecting.is_collecting():
        launch_deferral.settle(f"{op.name} is called outside of the compiled function")
        return None
    launch = _launch_alone(plan, op, args, params)
    if launch is None and not collecting.is_divided(op, args, params):
        launch_deferral.settle(f"{op.name} cannot be fused")
        _keep_immediate(key, plan)
        return None
    if collecting.is_small(plan, args):
        launch_deferral.settle(f"{op.name} has small operands")
        _keep_immediate(key, plan)
        return None
    node = None
    if tracked and mode.recording:
        node = begin_recording(plan.record_plan or _make_record_plan(plan, op, args, params), args)
    if launch is None:
        results = collecting.call_parts(op, args, params)
    else:
        results = (collecting.collect(launch, plan, args),)
    if node is not None:
        launch_deferral.note_recording()
        finish_recording(node, results)
    return results if plan.more_outputs else results[0]


def _launch_alone(plan: CallPlan, op: Op, args: Sequence[Any], params: tuple[Any, ...]) -> Launch | None:
    """Return the launch of a call whose kernel can be a part of a fused one, else None."""
    if plan.alone is None:
        found = signature(op, args, params)
        launch = Launch(op.kernel, plan.outputs, found.inputs, found.params)
        plan.largest = max([meta.nbytes for meta in (*plan.outputs, *found.inputs) if isinstance(meta, Meta)])
        plan.alone = launch_deferral.collecting.can_collect(launch, plan.context) and launch
    return plan.alone if isinstance(plan.alone, Launch) and not plan.more_outputs else None


def _defer_into(
    key: tuple[Any, ...],
    plan: CallPlan,
    op: Op,
    target: Tensor,
    args: Sequence[Any],
    params: tuple[Any, ...],
) -> bool:
    """Return True if a call that writes into `target` is deferred. False: the caller settles and launches."""
    collecting = launch_deferral.collecting
    if not collecting.is_collecting():
        return False
    launch = _launch_alone(plan, op, args, params)
    if launch is None or (not is_pending(target.memory) and collecting.is_small(plan, args)):
        _keep_immediate(key, plan)
        return False
    return collecting.collect_into(launch, plan, args, target)


def _keep_immediate(key: tuple[Any, ...], plan: CallPlan) -> None:
    """Let the fast path launch a call that compiled functions do not collect. See Note [Small calls]."""
    with _choice:
        if _least_nbytes == launch_deferral.least_nbytes:
            if len(immediate) >= _LIMIT:
                immediate.clear()
            immediate[key] = plan


def call_into(
    op: Op,
    outputs: Sequence[Tensor],
    args: Sequence[Any],
    params: tuple[Any, ...] = (),
    *,
    resize: bool = False,
) -> Any:
    """Run `op` and store its results in `outputs`: in-place operators, and `out=` (with `resize`).

    Raises:
        RuntimeError: With nothing changed, for a shape that does not match (`resize` resizes `out=`, as PyTorch does),
            a dtype that the result cannot be cast to, another device, or overlapping memory.
    """
    target: TensorCore = outputs[0]
    memory = target.memory
    if target.history is not None or memory.version < 0 or len(outputs) != 1:
        del memory  # a reference more, and a resize would look for tensors that share it
        return _call_into(op, outputs, args, params, resize)
    metas: list[Any] = []
    for a in args:
        if isinstance(a, TensorCore):
            if a.history is not None or (a.memory is memory and a is not target):
                del memory
                return _call_into(op, outputs, args, params, resize)
            metas.append(a.meta)
        else:
            metas.append(a.__class__)
    plan = fast_plans.get((op, params, *metas, target.meta, "into"))
    if plan is None:
        del memory
        return _call_into(op, outputs, args, params, resize)
    stream = current.local.streams[plan.index]
    if memory.stream != stream.handle:
        use_on(target, stream.handle)
    _launch(plan, [target.ptr], args, stream)
    target.counter.version += 1
    return target


def binary_into(op: Op, target: TensorCore, a: TensorCore, b: TensorCore, resize: bool) -> Any:
    """Run an operator on two tensors into a target: `call_into(op, (target,), (a, b))`, specialized."""
    plan = fast_plans.get((op, (), a.meta, b.meta, target.meta, "into"))
    if (
        plan is None
        or plan.scalars
        or a.history is not None
        or b.history is not None
        or target.history is not None
    ):
        return _call_into(op, (target,), (a, b), (), resize)
    memory: StorageCore = target.memory
    first: StorageCore = a.memory
    second: StorageCore = b.memory
    if memory.version < 0 or (first is memory and a is not target) or (second is memory and b is not target):
        del memory, first, second  # a reference more, and a resize would look for tensors that share it
        return _call_into(op, (target,), (a, b), (), resize)
    stream = current.local.streams[plan.index]
    handle = stream.handle
    if memory.stream != handle or first.stream != handle or second.stream != handle:
        for each in (target, a, b):
            use_on(each, handle)
    plan.launch((target.ptr, a.ptr, b.ptr), (), handle)
    stream.queue.busy = True
    target.counter.version += 1
    return target


def _call_into(
    op: Op, outputs: Sequence[Any], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> Any:
    """Run the slow path of `call_into`."""
    if interception.count:
        result = interception.intercept_into(op, outputs, args, params, resize)
        if result is not NotImplemented:
            return result
    metas: list[Any] = []
    tracked = False
    for a in (*args, *outputs):
        if isinstance(a, TensorCore):
            metas.append(a.meta)
            if a.history is not None:
                tracked = True
        else:
            metas.append(a.__class__)
    if tracked and resize:
        _refuse_out(op, outputs, args)
    key = (op, params, *metas, "into")
    plan = plans.get(key) or _find_in_tree(key, args, outputs)
    if plan is None:
        if layout_functions.any_sparse((*args, *outputs)):
            launch_deferral.settle(f"{op.name} writes into a sparse tensor")
            return layout_functions.run_change(op, outputs, args, params, resize)
        if any(isinstance(p, Tensor) for p in params):
            return _call_into(op, outputs, args, _params_to_numbers(op, params), resize)
        plan = _plan_into(op, outputs, args, params, resize)
        if plan is None:
            return _call_through_temporary(op, outputs, args, params)
    node = None
    if tracked and mode.recording:
        node = begin_in_place(plan.record_plan or _make_record_plan(plan, op, args, params), args, outputs[0])
    for target in outputs:
        if target.memory.version < 0:
            refuse_inference(target)
        for i in plan.tensors:
            a = args[i]
            if a is not target and a.memory is target.memory:
                _check_overlap(target, a)
    if launch_deferral.open_regions and _defer_into(key, plan, op, outputs[0], args, params):
        launch_deferral.note_recording(launch_deferral.has_recorded or node is not None)
    else:
        _launch_into(plan, op, outputs, args)
    for target in outputs:
        target.counter.version += 1
    if node is not None:
        finish_in_place(node, args, outputs[0])
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _launch_into(plan: CallPlan, op: Op, outputs: Sequence[Tensor], args: Sequence[Any]) -> None:
    launch_deferral.settle(f"{op.name} writes into memory")
    stream = current.local.streams[plan.index]
    for target in outputs:
        target.memory.used_on(stream.handle)
    _launch(plan, [t.ptr for t in outputs], args, stream)


def _refuse_written(op: Op, outputs: Sequence[Tensor], args: Sequence[Any]) -> None:
    """Raise PyTorch's first error of a faulty in-place call: it checks the written tensors before the arguments."""
    tracked = any(isinstance(t, Tensor) and requires_grad(t) for t in (*outputs, *args))
    if tracked and mode.recording and op.recorded_in_place:
        for target in outputs:
            require_changeable(target)
    for target in outputs:
        _refuse_repeated(target)


def _make_record_plan(plan: CallPlan, op: Op, args: Sequence[Any], params: tuple[Any, ...]) -> RecordPlan:
    model = plan.model
    if model is not None and model.record_plan is not None:
        plan.record_plan = taped = model.record_plan.of_shape(params, args, plan.outputs)
        return taped
    plan.record_plan = taped = RecordPlan(op, params, args, plan.outputs)
    if model is not None:
        model.record_plan = taped
    return taped


def _refuse_out(op: Op, outputs: Sequence[Tensor], args: Sequence[Any]) -> None:
    if mode.recording and any(isinstance(t, Tensor) and requires_grad(t) for t in (*outputs, *args)):
        raise RuntimeError(
            f"{op.name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad."
        )


def _key_into(
    op: Op, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...]
) -> tuple[Any, ...]:
    inputs = [a.meta if isinstance(a, Tensor) else a.__class__ for a in args]
    return (op, params, *inputs, *[t.meta for t in outputs], "into")


def _plan_into(
    op: Op, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> CallPlan | None:
    """Return the plan of a call into `outputs`, resized if requested; None if a dtype needs a temporary."""
    for target in outputs:
        system.require_open(target.memory.context)
    key = _key_into(op, outputs, args, params)
    try:
        plan = _make_plan_into(op, outputs, args, params, resize)
    except _LATER_ERRORS:
        if not resize:
            _refuse_written(op, outputs, args)
        raise
    if plan is not None:
        structures.note(key, partial(_trace_into, op, len(args)))
        _keep_plan(_key_into(op, outputs, args, params), plan)  # a resize changed metas
    return plan


def _make_plan_into(
    op: Op, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> CallPlan | None:
    signature = op.rule(_operands(args), _with_flags(op, params))
    fit = _fit(op, signature, outputs, resize)
    if fit is None:
        return None
    for target in outputs:
        require_backed(target)
    try:
        return _load(op, args, fit)
    except MemoryError as error:
        raise explain_shortage(op.name, error) from error


def _trace_into(op: Op, inputs: int, operands: Sequence[Any], params: tuple[Any, ...]) -> Build:
    """Return the result of `_make_plan_into` with symbols, for outputs that fit."""
    targets = tuple(operands[inputs:-1])
    signature = op.rule(operands[:inputs], _with_flags(op, params))
    for natural, target in zip(signature.outputs, targets, strict=True):
        if natural.shape != target.shape or may_self_overlap(target.shape, target.strides):
            raise Untraceable("an output is resized")
    return _trace_load(op, Signature(targets, signature.inputs, signature.params, signature.checked))


def _call_through_temporary(
    op: Op, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...]
) -> Any:
    results = call(op, args, params)
    for target, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
        target.copy_(result)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def empty(meta: Meta) -> Tensor:
    """Return a new tensor of uninitialized memory, on its device's current stream."""
    launch_deferral.settle("memory is allocated")
    context = system.context_of(meta.device)
    block = context.allocator.allocate(meta.nbytes, current.local.streams[context.index])
    return make_in(block, meta, context)


def _launch(plan: CallPlan, ptrs: list[int], args: Sequence[Any], stream: Stream) -> None:
    """Launch with the outputs' addresses, `ptrs`, and the inputs'."""
    handle = stream.handle
    for i in plan.tensors:
        operand: TensorCore = args[i]
        memory: StorageCore = operand.memory
        if memory.stream != handle:
            use_on(operand, handle)
        ptrs.append(operand.ptr)
    scalars = [send(args[i]) for i, send in plan.scalars] if plan.scalars else ()
    plan.launch(ptrs, scalars, handle)
    stream.queue.busy = True


def _launch_nothing(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
    """Launch nothing, because the outputs are empty."""


def _launcher(driver: Driver, exe: Executable) -> Launcher:
    """Return the driver's launch function of `exe`. With CUDA_LAUNCH_BLOCKING=1 it waits, so that errors show at the
    call.
    """
    launch = driver.launcher(exe)
    if flags.profiled:
        launch = launch_hooks.wrap_launcher(exe, launch)
    if not flags.launch_blocking:
        return launch

    def launch_and_wait(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        launch(ptrs, scalars, stream)
        driver.stream_sync(stream)

    return launch_and_wait


def _launch_with_workspace(
    launch: Launcher,
    context: Context,
    sizes: Sequence[int],
    ptrs: Sequence[int],
    scalars: Sequence[Any],
    stream: int,
) -> None:
    """Launch while blocks of the current stream are allocated, as PyTorch's kernel does."""
    allocator, current_stream = context.allocator, current.local.streams[context.index]
    with ExitStack() as blocks:
        for nbytes in sizes:
            blocks.callback(allocator.free, allocator.allocate(nbytes, current_stream))
        launch(ptrs, scalars, stream)


def launch_sleep(kernel: Kernel, where: device, cycles: int) -> None:
    """Launch a kernel that has no tensors and only spends time, on the current stream of a CUDA device."""
    context = system.context_of(where)
    exe = _sleep_kernels.get(context.device)
    if exe is None:
        exe = _sleep_kernels[context.device] = context.driver.load(
            Launch(kernel, (), (int64,)), context.driver_index
        )
    launch_deferral.settle("a kernel spends time")
    stream = current.local.streams[context.index]
    _launcher(context.driver, exe)((), (cycles,), stream.handle)
    stream.queue.busy = True


def _scalar_converter(to: dtype | type[object], checked: bool) -> Callable[[Any], Any]:
    """Return a function that converts a scalar, or the value of a 0-dim CPU tensor, to the Python value for the launch.

    Integers wrap to the dtype; with `checked`, PyTorch's overflow error is raised instead.
    """
    if not isinstance(to, dtype):
        return lambda x: x
    convert: Callable[[Any], Any] = _CONVERT[to.category]
    as_is: type[Any] = convert  # type: ignore[assignment]
    least: Any = -math.inf
    most: Any = math.inf
    whole = -1.0  # integers up to this size are sent as floats without a look at anything else
    if to.category == INTEGRAL:
        modulus = 1 << to.itemsize * 8
        half = modulus >> 1 if to.is_signed else 0
        convert = partial(_wrap_integer, half=half, modulus=modulus)
        least, most = -half, modulus - half - 1
    elif to.category == COMPLEX:
        as_is = type(None)  # complex numbers have no order
    if checked:
        convert = partial(checked_scalar, kind=to)
        if to.category == FLOATING:
            least, most = -finfo(to).max, finfo(to).max
    elif to.category == FLOATING:
        convert = partial(_real, kind=to)
    if to.category == FLOATING:
        whole = min(most, 2.0**53)

    def send(x: Any) -> Any:
        if x.__class__ is as_is and least <= x <= most:
            return x
        if x.__class__ is int and -whole <= x <= whole:
            return float(x)
        if isinstance(x, Tensor):
            return convert(_read(x))
        require_64_bits(x)
        return convert(x)

    return send


_CONVERT = {BOOL: bool, INTEGRAL: int, FLOATING: float, COMPLEX: complex}


def _real(x: Any, kind: dtype) -> float:
    """Return a number as a real one.

    Raises RuntimeError for a complex number with an imaginary part.
    """
    if isinstance(x, complex):
        if x.imag:
            raise RuntimeError(f"value cannot be converted to type {c_name(kind)} without overflow")
        x = x.real
    return float(x)


def _wrap_integer(x: Any, half: int, modulus: int) -> int:
    return (int(x) + half) % modulus - half


def _read(x: Tensor) -> Any:
    """Return the value of a 0-dim CPU tensor."""
    system.host.driver.host_touch(x.ptr, x.meta.nbytes, write=False)
    return array_at(x.ptr, (), x.meta.dtype.numpy)[()]


def _operands(args: Sequence[Any]) -> list[Operand]:
    return [a.meta if isinstance(a, Tensor) else type(a) for a in args]


def _params_to_numbers(op: Op, params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return params in which tensors without dimensions are replaced by their numbers."""
    for p in params:
        if isinstance(p, Tensor) and (p.meta.shape or p.requires_grad):
            raise TypeError(f"{op.name}(): an argument is a Tensor where a number or the like belongs")
    return tuple([p.item() if isinstance(p, Tensor) else p for p in params])


def _with_flags(op: Op, params: tuple[Any, ...]) -> tuple[Any, ...]:
    return params + tuple([getattr(flags, name) for name in op.flags])


def signature(op: Op, args: Sequence[Any], params: tuple[Any, ...] = ()) -> Signature:
    """Return the result of the operator's inference, without a launch. Raises the errors of the inference."""
    return op.rule(_operands(args), _with_flags(op, params))


def _find_plan(key: tuple[Any, ...], args: Sequence[Any]) -> CallPlan | None:
    """Return the plan of a call with a new key from the plan tree of its structure; None if `call` has to decide.

    This is the path of calls with ever new shapes.
    """
    if fast_plans is not plans or launch_deferral.open_regions:
        return None
    return _find_in_tree(key, args)


def _find_in_tree(
    key: tuple[Any, ...], args: Sequence[Any], outputs: Sequence[Tensor] = ()
) -> CallPlan | None:
    """Return the plan of a call with a new key from the plan tree of its structure; None if there is none.

    Args:
        key: The key.
        args: The arguments of the call.
        outputs: The tensors that it writes into, if the caller passed some.
    """
    plan: CallPlan | None = structures.find(key)
    if plan is None:
        return None
    context = plan.context
    for i in plan.tensors:  # `all` and a generator would take three times as long
        if args[i].memory.context is not context:
            return None
    for target in outputs:
        if target.memory.context is not context:
            return None
    if not plan.is_from_tree or _seen.has_seen(key):
        _keep_plan(key, plan)
    return plan


def _make_plan(key: tuple[Any, ...], op: Op, args: Sequence[Any], params: tuple[Any, ...]) -> CallPlan:
    """Create and store the plan of a call with a new key."""
    try:
        plan = _load(op, args, op.rule(_operands(args), _with_flags(op, params)))
    except MemoryError as error:
        raise explain_shortage(op.name, error) from error
    structures.note(key, partial(_trace_plan, op))
    _keep_plan(key, plan)
    return plan


def _keep_plan(key: tuple[Any, ...], plan: CallPlan) -> None:
    """Store a plan under its key."""
    if len(plans) >= _LIMIT:
        plans.clear()
    plans[key] = plan


def _trace_plan(op: Op, operands: Sequence[Any], params: tuple[Any, ...]) -> Build:
    """Return the result of `_make_plan` with symbols."""
    return _trace_load(op, op.rule(operands, _with_flags(op, params)))


def _trace_load(op: Op, signature: Signature) -> Build:
    """Return the result of `_load` with symbols: the driver's part, or a signature for a load per shape."""
    context = system.context_of(signature.outputs[0].device)
    has_elements = any(meta.numel for meta in signature.outputs)
    launch = Launch(op.kernel, signature.outputs, signature.inputs, signature.params)
    if has_elements and not (op.planned or flags.profiled or flags.launch_blocking):
        generic = context.driver.generic(launch, context.driver_index)
        if generic is not None:
            values, launcher = generic
            plan = CallPlan(context, None, signature)
            plan.allocate = context.allocator.allocate_output
            return Build(plan.of_shape, Build(launcher, *values), signature.outputs)
    fields = (signature.outputs, signature.inputs, signature.params, signature.checked)
    return Build(partial(_load_from_tree, op, context), Build(Signature, *fields))


def _load_from_tree(op: Op, context: Context, signature: Signature) -> CallPlan:
    plan = _load_signature(op, context, signature)
    plan.is_from_tree = True
    return plan


def explain_shortage(name: str, error: MemoryError) -> OutOfMemoryError:
    """Return the error for index arrays of the host that do not fit in memory."""
    return OutOfMemoryError(f"{name}(): the host has no memory for the indices of this call: {error}")


def _load(op: Op, args: Sequence[Any], signature: Signature) -> CallPlan:
    """Check the devices of the inputs and load the kernel for a plan."""
    for a in args:
        if isinstance(a, Tensor):
            require_backed(a)
            system.require_open(a.memory.context)
        elif isinstance(a, _NO_OPERANDS):  # a rule that does not look would leave it to the kernel
            raise TypeError(f"{op.name}(): expected a Tensor or a number, but got {type_name(a)}")
    return _load_signature(op, system.context_of(signature.outputs[0].device), signature)


def _load_signature(op: Op, context: Context, signature: Signature) -> CallPlan:
    exe = None
    if any(meta.numel for meta in signature.outputs):
        _refuse_giants(context, signature.outputs)
        launch = Launch(op.kernel, signature.outputs, signature.inputs, signature.params)
        if op.planned and context is not system.host:
            return _load_each_time(context, launch, signature)
        exe = context.driver.load(launch, context.driver_index)
        if op.flags and op.flags[-1].endswith("allow_tf32") and uses_tf32(exe.launch):
            context.rounds_to_tf32 = True  # for reports, see Note [TF32]
    return CallPlan(context, exe, signature)


def _refuse_giants(context: Context, outputs: Sequence[Meta]) -> None:
    """Raise the allocator's error for an output that is larger than all memory of its device.

    Kernels are prepared before outputs are allocated, which takes time and memory in proportion to some outputs.
    """
    nbytes = max([meta.nbytes for meta in outputs])
    if nbytes > _GIANT and nbytes > context.driver.device_properties(context.driver_index).total_memory:
        context.allocator.allocate(nbytes, current.local.streams[context.index])


def _load_each_time(context: Context, launch: Launch, signature: Signature) -> CallPlan:
    """Return a plan that looks up its executable in the device's cache of library plans at each launch."""
    cache = cache_of(context)
    key = (launch.kernel, launch.outputs, launch.inputs, launch.params)

    def through_cache(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        # stays loaded while this variable refers to it, whatever the cache's capacity
        kept = cache.get(key, launch)
        _launcher(context.driver, kept.exe)(ptrs, scalars, stream)

    plan = CallPlan(context, None, signature)
    plan.launch = through_cache
    return plan


def _fit(op: Op, signature: Signature, outputs: Sequence[Tensor], resize: bool) -> Signature | None:
    """Return the signature with `outputs` as outputs; None if a dtype needs a temporary. Raises if they do not fit."""
    for natural, target in zip(signature.outputs, outputs, strict=True):
        if natural.device is not target.meta.device:
            raise RuntimeError(
                f"Expected out tensor to have device {natural.device}, but got {target.meta.device} instead"
            )
        if natural.shape != target.meta.shape and not resize:
            raise RuntimeError(
                f"output with shape {list(target.meta.shape)} doesn't match the broadcast shape "
                f"{list(natural.shape)}"
            )
        if not can_cast(natural.dtype, target.meta.dtype):
            raise RuntimeError(
                f"result type {natural.dtype.torch_name} can't be cast to the desired output type "
                f"{target.meta.dtype.torch_name}"
            )
    for natural, target in zip(signature.outputs, outputs, strict=True):
        if natural.shape != target.meta.shape:
            resize_to(target, natural)
        _refuse_repeated(target)
    metas = tuple([t.meta for t in outputs])
    same = all(m.dtype is n.dtype for m, n in zip(metas, signature.outputs, strict=True))
    if not (same or op.casts_output):
        return None
    return Signature(metas, signature.inputs, signature.params, signature.checked)


def _refuse_repeated(target: Tensor) -> None:
    """Raise RuntimeError for a tensor that shows an element several times."""
    if may_self_overlap(target.meta.shape, target.meta.strides):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )


def resize_to(target: Tensor, natural: Meta) -> None:
    """Resize an `out=` tensor to the shape and memory order of a result.

    Warns, as PyTorch does, of one that has elements.
    """
    if target.meta.numel:
        warn_program(
            f"An output with one or more elements was resized since it had shape {list(target.meta.shape)}, which "
            f"does not match the required output shape {list(natural.shape)}. This behavior is deprecated, and in a "
            "future PyTorch release outputs will not be resized unless they have zero elements. You can explicitly "
            "reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            UserWarning,
        )
    version = target.counter.version
    target.resize_(natural.shape)
    target.counter.version = version  # the caller counts the change
    target.meta = target.meta.with_(strides=natural.strides)


def _check_overlap(target: Tensor, source: Tensor) -> None:
    """Refuse outputs that overlap an input, except for an equal view, which may be written in place."""
    if (
        target.ptr == source.ptr
        and target.meta.strides == source.meta.strides
        and target.meta.shape == source.meta.shape
    ):
        return
    refuse_overlap(target, source)


def refuse_overlap(target: Tensor, source: Tensor) -> None:
    """Raise RuntimeError where two dense tensors share memory; of layouts with holes PyTorch does not ask either."""
    to, of = target.meta, source.meta
    apart = target.ptr >= source.ptr + of.span or source.ptr >= target.ptr + to.span
    if apart or not (is_dense(to.shape, to.strides) and is_dense(of.shape, of.strides)):
        return
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
        "single memory location. Please clone() the tensor before performing the operation."
    )


set_callers(call, empty)
