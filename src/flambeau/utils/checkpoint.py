"""`torch.utils.checkpoint`: activations that backward recomputes instead of saving them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from flambeau import amp
from flambeau.autograd.function import Function
from flambeau.autograd.graph import saved_tensors_hooks
from flambeau.core.callsite import warn_program
from flambeau.core.device import device
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.core.size import Size
from flambeau.runtime import system
from flambeau.runtime.generator import default_cpu, default_of
from flambeau.tape.mode import mode, recording
from flambeau.tensor import autocast
from flambeau.tensor.autograd.autograd_meta import edge_of, requires_grad
from flambeau.tensor.autograd.saved import SavedTensor, save
from flambeau.tensor.functions.gradients import run_backward
from flambeau.tensor.tensor import Tensor
from flambeau.utils._checkpoint_log import OperatorLog, describe_difference
from flambeau.utils._selective_checkpoint import (
    CheckpointPolicy as CheckpointPolicy,
)
from flambeau.utils._selective_checkpoint import (
    SelectiveCheckpointContext as SelectiveCheckpointContext,
)
from flambeau.utils._selective_checkpoint import (
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
)

_TIP = (
    "Tip: To see a more detailed error message, either pass `debug=True` to `torch.utils.checkpoint.checkpoint(...)` "
    "or wrap the code block with `with torch.utils.checkpoint.set_checkpoint_debug_enabled(True):` to enable "
    "checkpoint-debug mode globally."
)


class CheckpointError(RuntimeError):
    """The error raised if recomputed values differ from those of the first run."""


def noop_context_fn() -> tuple[Any, Any]:
    """Return two context managers that do nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """Return the indices of the CUDA devices of the tensors among `args`, and their random states."""
    devices = list(dict.fromkeys(a.device for a in args if isinstance(a, Tensor) and a.is_cuda))
    return [where.index for where in devices], [default_of(where).get_state() for where in devices]


def set_device_states(
    devices: Sequence[int], states: Sequence[Tensor], *, device_type: str | None = None
) -> None:
    """Set the random states that `get_device_states` returned.

    Args:
        devices: The indices of the devices.
        states: A state for each of them.
        device_type: "cuda" or None.
    """
    for index, state in zip(devices, states, strict=True):
        default_of(device("cuda", index)).set_state(state)


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `inputs` with each tensor detached, which requires a gradient if the original does.

    Raises:
        RuntimeError: If `inputs` is not a tuple.
    """
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}"
        )
    return tuple(i.detach().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i for i in inputs)


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn if none of the tensors among `inputs` requires a gradient."""
    if not any(requires_grad(i) for i in inputs if isinstance(i, Tensor)):
        warn_program("None of the inputs have requires_grad=True. Gradients will be None", UserWarning)


class _StartState:
    """The state with which a function starts: autocast, and with `preserve` the random states."""

    def __init__(self, args: Sequence[Any], preserve: bool) -> None:
        self.casts = [
            (kind, autocast.local.lower[kind], autocast.local.enabled[kind]) for kind in autocast.KINDS
        ]
        self.random = _Random(args) if preserve else None

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Return a context manager that restores the recorded state inside."""
        with contextlib.ExitStack() as stack:
            for kind, lower, enabled in self.casts:
                stack.enter_context(amp.autocast(kind, lower, enabled))
            if self.random is not None:
                stack.enter_context(self.random.again())
            yield


class _Random:
    """The states of random generators: the CPU's and those of the arguments' devices."""

    def __init__(self, args: Sequence[Any]) -> None:
        devices = {a.device: None for a in args if isinstance(a, Tensor) and a.device.type == "cuda"}
        self.generators = [default_cpu, *[default_of(device) for device in devices]]
        self.states = self._now()

    def _now(self) -> list[bytes]:
        return [generator.state_bytes() for generator in self.generators]

    def _set(self, states: list[bytes]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.load_state_bytes(state)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Return a context manager in which random numbers are those of the first run. Numbers after it are
        unaffected.
        """
        now = self._now()
        self._set(self.states)
        try:
            yield
        finally:
            self._set(now)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Run `function(*args)` and save only its arguments. Backward runs it again to recompute the other saved tensors.

    Args:
        use_reentrant: True runs a nested backward (at least one argument must require a gradient, and `autograd.grad`
            is not supported); False keeps the graph and fills in its saved tensors.
        context_fn: Returns two context managers, for the first run and for the second.
        determinism_check: "default" compares shapes, dtypes and devices of both runs; "none" does not.
        debug: Errors list the operators of both runs, with the program's lines.
        early_stop: Stop the second run once all saved tensors are available.
        preserve_rng_state: Use the same random numbers in the second run (default True).

    Raises:
        CheckpointError: In backward, if the second run saves other tensors than the first.
        ValueError: If `debug` is combined with `use_reentrant=True` or with `context_fn`.
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if use_reentrant is None:
        _warn_of_no_choice(
            "torch.utils.checkpoint",
            "Starting in PyTorch 2.9, calling checkpoint without use_reentrant will raise an exception.",
        )
        use_reentrant = True
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        return CheckpointFunction.apply(function, preserve, *args)
    with open_frame(function, args, kwargs, preserve, context_fn, determinism_check, debug, early_stop):
        return function(*args, **kwargs)


def open_frame(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve: bool,
    context_fn: Callable[[], tuple[Any, Any]],
    determinism_check: str,
    debug: bool,
    early_stop: bool,
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager. In it the caller runs `function(*args, **kwargs)`, as `checkpoint` does.

    Args:
        function: The function that backward runs again.
        args: Its arguments.
        kwargs: Its keyword arguments.
        preserve: Use the same random numbers in the second run.
        context_fn, determinism_check, debug, early_stop: The arguments of `checkpoint`.
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check should be one of ['default', 'none'], but got {determinism_check}"
        )
    if not mode.recording:
        return contextlib.nullcontext()
    early = early_stop if _early.stop is None else _early.stop
    if not (debug if _debug.enabled is None else _debug.enabled):
        contexts = context_fn()
    elif context_fn is noop_context_fn:
        contexts = OperatorLog(), OperatorLog()
    else:
        raise ValueError("debug=True is incompatible with non-default context_fn")
    return _Frame(function, args, kwargs, preserve, contexts, determinism_check != "none", early).saving()


def _warn_of_no_choice(where: str, when: str) -> None:
    warn_program(
        f"{where}: the use_reentrant parameter should be passed explicitly. {when} use_reentrant=False is recommended, "
        "but if you need to preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for "
        "more details on the differences between the two variants.",
        UserWarning,
    )


class _Early(threading.local):
    stop: bool | None = None


_early = _Early()


class set_checkpoint_early_stop:
    """A context manager that sets `early_stop` for checkpoints created inside."""

    def __init__(self, enable: bool) -> None:
        self.enable = enable

    def __enter__(self) -> None:
        self._saved, _early.stop = _early.stop, self.enable

    def __exit__(self, *error: object) -> None:
        _early.stop = self._saved


class _Debug(threading.local):
    enabled: bool | None = None


_debug = _Debug()


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Override the argument `debug` of each call of `checkpoint` inside; None overrides nothing."""
    before, _debug.enabled = _debug.enabled, enabled
    try:
        yield
    finally:
        _debug.enabled = before


class _Group(threading.local):
    current: GraphExecGroup | None = None


_group = _Group()


class GraphExecGroup:
    """A context manager for several backward calls over separate parts of a graph, which share one recomputation.

    A checkpoint with `use_reentrant=False` keeps what it has computed again until backward has used it, so that it
    runs its function once for all calls, inside of a group and outside.
    """

    def __enter__(self) -> Self:
        if _group.current is not None:
            raise RuntimeError(
                f"GraphExecGroup contexts cannot be nested. Already inside group {_group.current}"
            )
        _group.current = self
        return self

    def __exit__(self, *error: object) -> None:
        _group.current = None

    @classmethod
    def _get_current_group(cls) -> GraphExecGroup | None:
        return _group.current


class DefaultDeviceType:
    """The type of device whose random states `checkpoint` keeps where no argument is on such a device.

    Flambeau keeps those of the arguments' devices, so that the type only answers `get_device_type`.
    """

    _device_type: str | None = None

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        """Set the type.

        Raises:
            NotSupportedError: If it is neither "cuda" nor "cpu".
        """
        if device not in ("cuda", "cpu"):
            raise NotSupportedError(f"Flambeau has devices of the types cuda and cpu, got {device!r}")
        DefaultDeviceType._device_type = device

    @staticmethod
    def get_device_type() -> str:
        """Return the type; before `set_device_type` it is that of the accelerator, "cpu" without one."""
        return DefaultDeviceType._device_type or ("cuda" if system.is_available() else "cpu")


# -- a walk inside the walk -------------------------------------------------------------------------------


class CheckpointFunction(Function):
    """The function of `checkpoint(use_reentrant=True)`: `apply(function, preserve_rng_state, *args)`."""

    @staticmethod
    def forward(ctx: Any, function: Any, preserve: bool, *args: Any) -> Any:
        if not any(ctx.needs_input_grad):
            warn_program("None of the inputs have requires_grad=True. Gradients will be None", UserWarning)
        ctx.run_function = function
        ctx.state = _StartState(args, preserve)
        ctx.slots = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.rest = [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*[args[i] for i in ctx.slots])
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if mode.engine.slots is not None:
            raise RuntimeError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
                "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call "
                ".backward() without passing the `inputs` argument."
            )
        args = list(ctx.rest)
        for i, t in zip(ctx.slots, ctx.saved_tensors, strict=True):
            args[i] = t.detach().requires_grad_(ctx.needs_input_grad[i + 2])
        with recording(True), ctx.state.again():
            outputs = ctx.run_function(*args)
        listed = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (t, g) for t, g in zip(listed, grads, strict=True) if isinstance(t, Tensor) and requires_grad(t)
        ]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        run_backward([t for t, _ in pairs], [g for _, g in pairs])
        return None, None, *[a.grad if isinstance(a, Tensor) else None for a in args]


# -- a graph that is filled in ----------------------------------------------------------------------------


class _Place:
    """A placeholder for a tensor that a node did not save."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Enough(Exception):
    """A signal that ends the second run, because all saved tensors are available."""


class _Frame:
    """One call of a checkpointed function. Its arguments are saved like a node's, so an outer checkpoint drops them.

    Attributes:
        metas: Metas of the tensors that the first run would have saved.
        found: Number -> tensor that the second run has saved.
    """

    def __init__(
        self, function: Any, args: Any, kwargs: Any, preserve: bool, contexts: Any, checks: bool, early: bool
    ) -> None:
        self.function = function
        self.args = [_save_argument(a) for a in args]
        self.kwargs = {name: _save_argument(a) for name, a in kwargs.items()}
        self.state = _StartState((*args, *kwargs.values()), preserve)
        self.first, self.second = contexts
        self.checks, self.early = checks, early
        self.metas: list[Meta] = []
        self.found: dict[int, Any] = {}

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Drop the tensors that nodes would save inside."""
        with saved_tensors_hooks(self.pack, self.unpack), self.first:
            yield

    def pack(self, t: Tensor) -> _Place:
        self.metas.append(t.meta)
        return _Place(len(self.metas) - 1)

    def unpack(self, place: _Place) -> Any:
        if place.number not in self.found:
            self.compute_again()
        return self.found.pop(place.number)

    def compute_again(self) -> None:
        self.found.clear()
        count = 0

        def keep(t: Any) -> Any:
            nonlocal count
            if count < len(self.metas):
                self.found[count] = t.detach()
            count += 1
            if self.early and count == len(self.metas):
                raise _Enough
            return t.detach()

        args = [_alike(a) for a in self.args]
        kwargs = {name: _alike(a) for name, a in self.kwargs.items()}
        hooks = saved_tensors_hooks(keep, lambda t: t)
        with contextlib.suppress(_Enough), recording(True), self.state.again(), hooks, self.second:
            self.function(*args, **kwargs)
        self.check(count)

    def check(self, count: int) -> None:
        if count != len(self.metas):
            raise self._error(
                "torch.utils.checkpoint: A different number of tensors was saved during the original forward and "
                f"recomputation.\nNumber of tensors saved during forward: {len(self.metas)}\nNumber of tensors saved "
                f"during recomputation: {count}."
            )
        pairs = (
            [(i, _describe_meta(m), _describe_meta(self.found[i].meta)) for i, m in enumerate(self.metas)]
            if self.checks
            else []
        )
        different = [
            f"tensor at position {i}:\nsaved metadata: {saved}\nrecomputed metadata: {again}\n"
            for i, saved, again in pairs
            if saved != again
        ]
        if different:
            raise self._error(
                "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than "
                f"during the forward pass.\n{''.join(different)}."
            )

    def _error(self, text: str) -> CheckpointError:
        logs = isinstance(self.first, OperatorLog)  # with debug=True
        more = describe_difference(self.first, self.second) if logs else _TIP
        return CheckpointError(f"{text}\n{more}")


def _save_argument(a: Any) -> Any:
    return (save(a, edge_of(a)), requires_grad(a)) if isinstance(a, Tensor) else a


def _alike(a: Any) -> Any:
    if isinstance(a, tuple) and len(a) == 2 and isinstance(a[0], SavedTensor):
        t: Any = a[0].unpack_detached(None)
        return t.detach().requires_grad_(a[1])
    return a


def _describe_meta(meta: Meta) -> dict[str, Any]:
    return {"shape": Size(meta.shape), "dtype": meta.dtype, "device": meta.device}


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Run modules one after the other in `segments` parts, of which all except the last are checkpointed.

    Args:
        functions: An `nn.Sequential` or a list of functions of one argument.
        preserve_rng_state: As for `checkpoint`.
    """
    if use_reentrant is None:
        _warn_of_no_choice(
            "torch.utils.checkpoint.checkpoint_sequential",
            "In version 2.9 we will raise an exception if use_reentrant is not passed.",
        )
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    listed = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(listed) // segments

    def part(start: int, end: int) -> Callable[..., Any]:
        def run(x: Any) -> Any:
            for function in listed[start:end]:
                x = function(x)
            return x

        return run

    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(part(start, end), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return part(end, len(listed))(input)
