"""`torch.utils.checkpoint`: activations computed again in the walk backward instead of kept."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flambeau.autograd.function import Function
from flambeau.autograd.graph import saved_tensors_hooks
from flambeau.runtime.generator import default_cpu, default_of
from flambeau.tape.mode import mode, recording
from flambeau.tensor.gradients import run_backward
from flambeau.tensor.tensor import Tensor


class CheckpointError(RuntimeError):
    """What was computed again is not what was computed first."""


class _Random:
    """The random states that a function starts from: the CPU's and those of its arguments' devices."""

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
        """Random numbers inside are those that followed when this was made; what follows outside is unchanged."""
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
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Run `function(*args)`, keeping its arguments alone; what its nodes saved is computed again when it is asked for.

    Args:
        use_reentrant: True runs a walk of its own inside the walk (then at least one argument must require a
            gradient, and `autograd.grad` is not supported); False keeps the graph and fills it in.
        context_fn: gives two context managers, for the first computation and for the second.
        preserve_rng_state: whether random numbers are the same the second time (default True).
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if use_reentrant is None:
        warnings.warn(
            "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. Starting in PyTorch 2.9, "
            "calling checkpoint without use_reentrant will raise an exception. use_reentrant=False is recommended, but "
            "if you need to preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for "
            "more details on the differences between the two variants.",
            UserWarning,
            stacklevel=2,
        )
        use_reentrant = True
    if use_reentrant:
        if context_fn is not None or debug:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        return _Reentrant.apply(function, preserve, *args)
    return _filled_in(function, args, kwargs, preserve, context_fn, determinism_check)


class _Reentrant(Function):
    @staticmethod
    def forward(ctx: Any, function: Any, preserve: bool, *args: Any) -> Any:
        ctx.run_function = function
        ctx.random = _Random(args) if preserve else None
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.rest = [None if isinstance(a, Tensor) else a for a in args]
        if mode.recording or any(ctx.needs_input_grad):
            if not any(ctx.needs_input_grad):
                warnings.warn(
                    "None of the inputs have requires_grad=True. Gradients will be None", stacklevel=4
                )
            ctx.save_for_backward(*[args[i] for i in ctx.places])
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        args = list(ctx.rest)
        for i, t in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[i] = t.detach().requires_grad_(ctx.needs_input_grad[i + 2])
        with recording(True), ctx.random.again() if ctx.random is not None else contextlib.nullcontext():
            outputs = ctx.run_function(*args)
        listed = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (t, g) for t, g in zip(listed, grads, strict=True) if isinstance(t, Tensor) and t.requires_grad
        ]  # type: ignore[attr-defined]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        run_backward([t for t, _ in pairs], [g for _, g in pairs])
        return None, None, *[a.grad if isinstance(a, Tensor) else None for a in args]


class _Place:
    """Stands for a tensor that a node did not keep."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


def _filled_in(
    function: Any, args: Any, kwargs: Any, preserve: bool, context_fn: Any, determinism_check: str
) -> Any:
    first, second = (
        context_fn() if context_fn is not None else (contextlib.nullcontext(), contextlib.nullcontext())
    )
    random = _Random(args) if preserve else None
    metas: list[Any] = []
    found: dict[int, Any] = {}

    def pack(t: Tensor) -> _Place:
        metas.append(t.meta)
        return _Place(len(metas) - 1)

    def unpack(place: _Place) -> Any:
        if place.number not in found:
            compute_again()
        return found.pop(place.number)

    def compute_again() -> None:
        count = 0

        def keep(t: Any) -> Any:
            nonlocal count
            found[count] = t.detach()
            count += 1
            return t.detach()

        found.clear()
        again = random.again() if random is not None else contextlib.nullcontext()
        with recording(True), again, second, saved_tensors_hooks(keep, lambda t: t):
            function(*[_alike(a) for a in args], **{name: _alike(a) for name, a in kwargs.items()})
        _check(metas, found, count, determinism_check)

    with first, saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


def _alike(a: Any) -> Any:
    return a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a  # type: ignore[attr-defined]


def _check(metas: list[Any], found: dict[int, Any], count: int, determinism_check: str) -> None:
    if count != len(metas):
        raise CheckpointError(
            "torch.utils.checkpoint: A different number of tensors was saved during the original forward and "
            f"recomputation.\nNumber of tensors saved during forward: {len(metas)}\nNumber of tensors saved during "
            f"recomputation: {count}"
        )
    if determinism_check == "none":
        return
    for i, meta in enumerate(metas):
        if found[i].meta is not meta:
            raise CheckpointError(
                "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than "
                f"during the forward pass.\ntensor at position {i}:\nsaved metadata: {meta}\n"
                f"recomputed metadata: {found[i].meta}"
            )


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Run modules one after the other in `segments` parts, of which all but the last are checkpointed."""
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
        input = checkpoint(part(start, end), input, use_reentrant=use_reentrant, **kwargs)
    return part(end, len(listed))(input)
