"""A function that is captured into CUDA graphs and replayed: `mode="reduce-overhead"`.

# Note [Calls of replayed functions]
A call's key is the layouts of its tensors, the values of its other arguments, and the thread's modes. The first call
with a key runs in the default mode and notes the code that runs. The next one is captured, and later ones are replayed
while the guards hold. A guard that fails leads to another capture. Of a function that was captured `limit` times, a
capture replaces the graph that was not replayed for the longest time, if it was replayed often enough to pay for that.
If there is no such graph, further calls that no graph serves run in the default mode. So a learning rate that changes
at each epoch is captured again and again, and one that changes at each step is not. A call that cannot be captured runs
eagerly from the place that prevents it, and later calls with its key run in the default mode.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from flambeau.core.flags import Flags, flags
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.logs import is_logged, log
from flambeau.nn.compile_options import CudagraphSteps
from flambeau.nn.modules.module_hooks import everywhere
from flambeau.nn.parameter import Parameter
from flambeau.nn.replay.captured_call import CapturedCall
from flambeau.nn.replay.nesting import Nesting, flatten
from flambeau.nn.replay.python_state import CodeThatRan, PythonState, TooMuchState
from flambeau.nn.replay.recorded_capture import CaptureBreak
from flambeau.runtime import current, system
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.mode import mode
from flambeau.tensor import autocast, interception
from flambeau.tensor.arguments import torch_function
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.fusion.collecting import CollectedLaunches
from flambeau.tensor.tensor import Tensor

LIMIT = 8  # captures of one function, PyTorch's `recompile_limit`
WORTH = 16  # replays that pay for the capture of a graph
_MOST_SIGNATURES = 256
_TENSORS = (Tensor, Parameter)
_SIMPLE = frozenset({Tensor, Parameter, int, float, bool, str, type(None)})
_VALUES = (int, float, complex, str, bytes, bool, type(None))
_flags = attrgetter(*[name for name in Flags.__slots__ if not name.startswith("_")])


class GraphDescription(NamedTuple):
    """One graph in a report.

    Attributes:
        graph: The graph.
        operations: The names of what it contains.
        guards: How the program reaches each guarded value.
    """

    graph: Any
    operations: list[str]
    guards: list[str]


_functions: weakref.WeakSet[ReplayedFunction] = weakref.WeakSet()


def reset() -> None:
    """Drop all captured calls of all functions, and forget the marks of steps."""
    CudagraphSteps.number = 0
    for function in list(_functions):
        function.reset()


system.on_close(reset)


class _Signature:
    """Calls with one key.

    Attributes:
        addresses: The addresses of the tensors in the latest call that was not replayed.
        moving: The numbers of arguments whose address changed.
        ran: The code that ran in the warm-up.
        captured: The captured calls.
        refusal: Why calls run in the default mode; None if they do not.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.addresses = _addresses(leaves)
        self.moving: set[int] = set()
        self.ran = CodeThatRan()
        self.captured: list[CapturedCall] = []
        self.refusal: CaptureBreak | None = None

    def note_addresses(self, leaves: Sequence[Any]) -> None:
        now = _addresses(leaves)
        self.moving |= {k for k, (a, b) in enumerate(zip(self.addresses, now, strict=True)) if a != b}
        self.addresses = now


class ReplayedFunction:
    """A function with its captured calls.

    Args:
        function: The function.
        context: The arguments of `torch.compile`.

    Attributes:
        limit: The largest number of captures, without those whose graphs were replaced after `WORTH` replays.
        verify_every: Every how many replays the Python code runs again, to compare its launches; 0 for never.
        captures: The number of captures so far.
        replays: The number of replays so far.
        breaks: Why calls were not captured, or captured again.
    """

    def __init__(self, function: Callable[..., Any], context: Any = None) -> None:
        settings = getattr(context, "compiler_config", None) or {}
        self.function = function
        self.limit: int = getattr(context, "capture_limit", None) or LIMIT
        self.verify_every: int = settings.get("verify_every", 0)
        self.captures = self.replays = 0
        self._replaced = 0
        self.breaks: list[CaptureBreak] = []
        self._signatures: dict[tuple[Any, ...], _Signature] = {}
        self._latest: list[CapturedCall] = []  # whose results are valid
        self._step, self._ordinal = -1, 0
        self._lock = threading.Lock()
        _functions.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _can_replay() or not self._lock.acquire(blocking=False):
            return self._run_default(args, kwargs)
        try:
            return self._call(args, kwargs)
        finally:
            self._lock.release()

    def captured_calls(self) -> list[CapturedCall]:
        """Return the captured calls."""
        return [captured for signature in self._signatures.values() for captured in signature.captured]

    def describe(self) -> list[GraphDescription]:
        """Return the captured calls for a report."""
        return [
            GraphDescription(call.graph, [launch.name for launch in call.launches], call.state.names())
            for call in self.captured_calls()
        ]

    def reset(self) -> None:
        """Drop all captured calls."""
        self._signatures.clear()
        self._latest.clear()
        self.captures = self._replaced = 0

    def _run_default(
        self, args: Sequence[Any], kwargs: dict[str, Any], least_nbytes: int | None = None
    ) -> Any:
        with CollectedLaunches(least_nbytes):
            return self.function(*args, **kwargs)

    def _run_whole(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the function for a capture, which contains fused kernels of all sizes."""
        return self._run_default(args, kwargs, 0)

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        leaves: Sequence[Any] = args
        nesting: Nesting | None = None
        if kwargs or not _SIMPLE.issuperset(map(type, args)):
            nesting = flatten((tuple(args), kwargs), leaves := [])
        self._begin_call()
        key = (nesting, self._ordinal, *thread_modes(), *map(key_of, leaves))
        signature = self._signatures.get(key)
        if signature is None:
            if len(self._signatures) >= _MOST_SIGNATURES or not self._make_room():
                return self._run_default(args, kwargs)
            return self._warm_up(key, leaves, args, kwargs)
        if signature.refusal is not None:
            return self._run_default(args, kwargs)
        found = self._find(signature, leaves)
        if found is not None:
            self._expire()
            self._latest.append(found)
            self.replays += 1
            found.replays, found.latest = found.replays + 1, self.replays
            if self.verify_every and self.replays % self.verify_every == 0:
                return self._verify(signature, found, leaves, args, kwargs)
            return found.replay(leaves)
        if not self._make_room():
            lately = f"; {self.breaks[-1]}" if self.breaks else ""
            signature.refusal = CaptureBreak(f"it was captured {self.limit} times{lately}", None)
            self._log(f"runs in the default mode from now on: {signature.refusal}")
            return self._run_default(args, kwargs)
        return self._capture(signature, leaves, args, kwargs)

    def _make_room(self) -> bool:
        """Return True if the function may be captured once more. At the limit, drop a graph that was worth its capture:
        the one that was replayed last the longest time ago.
        """
        if self.captures - self._replaced < self.limit:
            return True
        worth = [
            (captured.latest, signature)
            for signature in self._signatures.values()
            for captured in signature.captured
            if captured.replays >= WORTH
        ]
        if not worth:
            return False
        latest, signature = min(worth, key=lambda pair: pair[0])
        signature.captured = [captured for captured in signature.captured if captured.latest != latest]
        self._replaced += 1
        return True

    def _begin_call(self) -> None:
        """Number the calls of one step. Without marks each call is a step."""
        step = CudagraphSteps.number
        self._ordinal = self._ordinal + 1 if step and step == self._step else 0
        self._step = step

    def _expire(self) -> None:
        """Let results of earlier steps raise."""
        if self._ordinal == 0:
            for captured in self._latest:
                captured.expire()
            self._latest.clear()

    def _warm_up(
        self, key: tuple[Any, ...], leaves: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._expire()
        signature = _Signature(leaves)
        with _Nesting(), signature.ran.watch():
            result = self._run_whole(args, kwargs)
        self._signatures[key] = signature
        return result

    def _find(self, signature: _Signature, leaves: Sequence[Any]) -> CapturedCall | None:
        """Return a captured call whose guards hold. One that expects other addresses is dropped."""
        why = ""
        for captured in list(signature.captured):
            moved = captured.arguments.find_moved(leaves)
            if moved:
                signature.moving.update(moved)
                signature.captured.remove(captured)
                why = f"argument {moved[0]} has another address"
            elif not captured.arguments.fits(leaves):
                why = "arguments share memory in another way"
            else:
                why = captured.state.mismatch()
                if not why:
                    return captured
        if why:
            self._note(CaptureBreak(f"it is captured again, because {why}", None))
        return None

    def _capture(
        self, signature: _Signature, leaves: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._expire()
        signature.note_addresses(leaves)
        roots = {"": self.function} | {
            f"argument {k}": x for k, x in enumerate(leaves) if not isinstance(x, Tensor) or is_recorded(x)
        }
        try:
            state = PythonState(roots, signature.ran)
        except TooMuchState as error:
            return self._refuse(signature, CaptureBreak(str(error), None), args, kwargs)
        self.captures += 1

        def run() -> Any:
            with signature.ran.watch():
                return self._run_whole(args, kwargs)

        with _Nesting():
            context = current.context_at(current.local.device)
            captured = CapturedCall(run, leaves, state, signature.moving, context)
        result, captured.result = captured.result, None
        why = captured.refusal
        if why is None and signature.ran.latest:
            why = CaptureBreak("earlier calls did not run this code", (signature.ran.latest[0], 0))
        elif why is None:
            signature.captured.append(captured)
            self._latest.append(captured)
            self._log(f"captured {len(captured.launches)} launches")
        elif why.is_final:
            signature.refusal = why
        if why is not None:
            self._note(why)
        return result

    def _verify(
        self,
        signature: _Signature,
        found: CapturedCall,
        leaves: Sequence[Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the Python code, compare its launches with those of the graph, and replay the graph.

        Raises:
            RuntimeError: If they differ. The graph is dropped.
        """
        with _Nesting():
            difference = found.compare(lambda: self._run_whole(args, kwargs), leaves)
        if difference:
            signature.captured.remove(found)
            raise RuntimeError(
                f"verify_every={self.verify_every}: replay {self.replays} of {self._name()} would stand for a call "
                f"that launches something else: {difference}. The function reads state that its guards do not reach; "
                "make it an argument, or run the function in the default mode."
            )
        return found.replay(leaves, counted=True)

    def _name(self) -> str:
        return getattr(self.function, "__qualname__", str(self.function))

    def _refuse(
        self, signature: _Signature, why: CaptureBreak, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        signature.refusal = why
        self._note(why)
        return self._run_default(args, kwargs)

    def _note(self, why: CaptureBreak) -> None:
        if len(self.breaks) < 100:
            self.breaks.append(why)
        self._log(f"not replayed: {why}")

    def _log(self, text: str) -> None:
        if is_logged("fusion"):
            log("fusion", f"{self._name()} {text}")


class _Nesting:
    """A context in which replayed functions that the function calls run in the default mode."""

    _local = threading.local()

    def __enter__(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def __exit__(self, *error: object) -> None:
        self._local.depth -= 1

    @classmethod
    def is_open(cls) -> bool:
        return getattr(cls._local, "depth", 0) > 0


def _can_replay() -> bool:
    """Return True if this thread's calls can be captured and replayed now."""
    if (
        interception.count
        or launch_deferral.open_regions
        or not system.is_initialized()
        or _Nesting.is_open()
    ):
        return False
    if flags.profiled or flags.memory_subscribed or flags.launch_blocking or mode.anomaly or mode.pack_hooks:
        return False
    if any(everywhere.around_calls) or torch_function.here.entered or seat() is not None:
        return False
    contexts = system.contexts()
    return len(contexts) > 0 and not contexts[0].orders.capturing


def thread_modes() -> tuple[Any, ...]:
    """Return the thread's modes that the function can depend on."""
    local, cast = current.local, autocast.local
    casts = tuple(cast.enabled.values())
    return (
        mode.recording, mode.inference, mode.saving_forbidden, casts, any(casts) and tuple(cast.lower.values()),
        cast.cache_enabled, _flags(flags), local.device, tuple([stream.handle for stream in local.streams]),
        current.default.device,
    )  # fmt: skip


def key_of(x: Any) -> Any:
    """Return the part of an argument on which a captured call depends. Tensors that get gradients count as objects."""
    kind = type(x)
    if kind in _TENSORS:
        return (x.meta, id(x)) if is_recorded(x) else x.meta
    return (kind, x) if kind in _VALUES else (kind, id(x))


def is_recorded(x: Any) -> bool:
    """Return True for a tensor whose uses autograd records now."""
    return isinstance(x, Tensor) and x.history is not None and mode.recording and requires_grad(x)


def _addresses(leaves: Sequence[Any]) -> list[int]:
    return [x.ptr if isinstance(x, Tensor) else 0 for x in leaves]
