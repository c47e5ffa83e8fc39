"""Autocast: the dtype in which operators compute if the program does not choose it. This module owns that state.

# Note [Autocast]
An operator's definition names its rule (`ops/autocast_rules.py`), by which `call` casts the inputs. A function that is
composed of several operators names its rule itself (`cast`, `call_cast`). In-place and `out=` calls are unchanged.

Casts of weights are cached as in PyTorch: one cache for all threads and streams, which every thread clears when it
leaves its outermost block. The cache orders nothing: a stream that uses a cast of another stream must wait for it, and
the other stream must wait before the cast is freed. If a weight changes it is cast again; in PyTorch it is not.

Calls outside of autocast cost nothing extra: the fast path looks in a cache of plans that is empty while any thread
autocasts. Then, and only then, every call goes through `cast_inputs`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16, float32, float64
from flambeau.core.host.turn_scheduler import seat
from flambeau.ops.autocast_rules import AutocastRule
from flambeau.ops.copy import weight_cast
from flambeau.ops.op import Op
from flambeau.tape.mode import mode, recording
from flambeau.tensor.tensor import Tensor

KINDS = ("cuda", "cpu")
# Kinds of devices without tensors, whose autocast can be switched and has no effect: kind -> its lower precision.
ABSENT = dict.fromkeys(("mps", "xpu", "mtia", "ipu", "privateuseone"), float16)
ABSENT |= dict.fromkeys(("xla", "hpu", "maia"), bfloat16)


class _Local(threading.local):
    """One thread's autocast state. `alone` is True inside a function whose inputs were cast already."""

    alone = False
    cache_enabled = True
    nesting = 0

    def __init__(self) -> None:
        self.enabled = dict.fromkeys((*KINDS, *ABSENT), False)
        self.lower = {"cuda": float16, "cpu": bfloat16, **ABSENT}
        self.casts = _of_process if seat() is None else Casts()  # ranks that are threads stand for processes


class Casts:
    """Casts of weights, by the weight's identity, the target dtype and the weight's version."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: dict[
            tuple[int, dtype, int], tuple[Tensor, Tensor]
        ] = {}  # with the weight: its id stays its own

    def cast(self, weight: Tensor, to: dtype) -> Tensor:
        """Return the cast of `weight`, computed on the current stream if there is none."""
        key = (id(weight), to, weight.counter.version)
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                with recording(
                    True
                ):  # gradients pass to the weight, also if a thread without recording casts it first
                    found = self._kept[key] = (weight, _launch(weight_cast, weight, (to, weight.meta.shape)))
        return found[1]

    def list_casts(self) -> list[tuple[Tensor, dtype]]:
        """Return the weights of the cached casts, with the target dtypes, without weights that have changed since."""
        with self._lock:
            kept = [(weight, to, version) for (_, to, version), (weight, _) in self._kept.items()]
        return [(weight, to) for weight, to, version in kept if version == weight.counter.version]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


_of_process = Casts()
local = _Local()
threads = (
    0  # that autocast now: the one thing that is looked at outside of autocast, and not on the warm path
)
_lock = threading.Lock()
_listeners: list[Callable[[], None]] = []
_launch: Callable[..., Tensor]


def launch_by(launch: Callable[..., Tensor]) -> None:
    """Register the engine's function that runs an operator on one tensor. The engine imports this module."""
    global _launch
    _launch = launch


def subscribe(changed: Callable[[], None]) -> None:
    """Register `changed()`, called after the first thread begins to autocast and after the last one stops."""
    _listeners.append(changed)


def enable(kind: str, on: bool) -> None:
    """Switch this thread's autocast for a kind of device."""
    global threads
    before = any(local.enabled.values())
    local.enabled[kind] = on
    change = any(local.enabled.values()) - before
    if change:
        with _lock:
            threads += change
        for changed in _listeners:
            changed()


# -- casts ------------------------------------------------------------------------------------------------


def _lower(tensors: Sequence[Any], kind: str) -> list[Any]:
    return [_to(t, local.lower[kind], kind) for t in tensors]


def _float32(tensors: Sequence[Any], kind: str) -> list[Any]:
    return [_to(t, float32, kind) for t in tensors]


def _widest(tensors: Sequence[Any], kind: str) -> list[Any]:
    """Return float32 if one of the inputs has that dtype; float64 is ignored."""
    wide = any(isinstance(t, Tensor) and t.meta.dtype is float32 and eligible(t, kind) for t in tensors)
    return _float32(tensors, kind) if wide else _lower(tensors, kind)


def _volumes(tensors: Sequence[Any], kind: str) -> list[Any]:
    """Return the operands in float32 if they have three spatial dimensions; otherwise unchanged."""
    return _float32(tensors, kind) if tensors[0].meta.ndim == 5 else list(tensors)


def _refuse(tensors: Sequence[Any], kind: str) -> list[Any]:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )


def _as_is(tensors: Sequence[Any], kind: str) -> list[Any]:
    return list(tensors)


def eligible(t: Tensor, kind: str) -> bool:
    """Return True if autocast for a kind of device may cast the tensor: floating, narrower than float64, on that
    device.
    """
    meta = t.meta
    return meta.dtype.is_floating_point and meta.dtype is not float64 and meta.device.type == kind


def _to(t: Any, to: dtype, kind: str) -> Any:
    if not isinstance(t, Tensor) or t.meta.dtype is to or not eligible(t, kind):
        return t
    lowered = to is not float32
    if not (lowered and local.cache_enabled and t.meta.dtype is float32 and _is_weight(t)) or mode.inference:
        return t.to(to)
    return local.casts.cast(t, to)


def _is_weight(t: Tensor) -> bool:
    """Return True for a leaf that requires a gradient and is not a view, whose cast is worth caching."""
    history = t.history
    return history is not None and history.base is None and t.is_leaf and t.requires_grad


_POLICIES: dict[str, Callable[[Sequence[Any], str], list[Any]]] = {
    "lower": _lower, "float32": _float32, "widest": _widest, "volumes": _volumes, "as_is": _as_is, "refuse": _refuse,
}  # fmt: skip


# -- calls ------------------------------------------------------------------------------------------------


def _kind_of(args: Sequence[Any]) -> str | None:
    """Return the kind of device whose autocast lists apply to these arguments; None if it does not autocast here."""
    if local.alone:
        return None
    kind = None
    for a in args:
        if isinstance(a, Tensor):
            if a.meta.device.index is not None:
                kind = "cuda"
                break
            kind = "cpu"
    return kind if kind is not None and local.enabled[kind] else None


def _policy_of(rule: AutocastRule, kind: str | None) -> Callable[[Sequence[Any], str], list[Any]] | None:
    return None if kind is None else _POLICIES.get(rule.cuda if kind == "cuda" else rule.cpu)


def cast_inputs(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Return the inputs of a call, cast as the operator's rule requires; `args` itself if nothing changes."""
    cast_args = cast(op.autocast, *args)
    return args if all([a is b for a, b in zip(cast_args, args, strict=True)]) else cast_args  # noqa: C419 (faster than a generator)


def cast(rule: AutocastRule, *tensors: Any) -> Sequence[Any]:
    """Return the inputs of a composite function, some of which may be None, cast as its rule requires."""
    kind = _kind_of(tensors)
    policy = _policy_of(rule, kind)
    return tensors if policy is None else policy(tensors, kind)  # type: ignore[arg-type]


def call_cast(rule: AutocastRule, function: Callable[..., Any], tensors: Sequence[Any], *more: Any) -> Any:
    """Return `function(*tensors, *more)` with the tensors cast by the rule. Calls inside cast nothing."""
    kind = _kind_of(tensors)
    policy = _policy_of(rule, kind)
    if policy is None:
        return function(*tensors, *more)
    tensors = policy(tensors, kind)  # type: ignore[arg-type]
    local.alone = True
    try:
        return function(*tensors, *more)
    finally:
        local.alone = False
