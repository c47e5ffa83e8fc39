"""Autocast: which dtype operators run in where a program leaves that choice. Owner of that state.

# Note [Autocast]
PyTorch's lists say, for each kind of device, which functions take their inputs in the lower precision, which in
float32, and which in the widest dtype among them. Where a function is one record, the engine casts the record's
inputs; a function that is made of several says so itself (`cast`, `call_cast`). In-place and `out=` calls are
left alone.

The casts of weights are kept in a cache as PyTorch's is: one for all threads and all streams, cleared by every thread
that leaves its outermost block. It orders nothing: a stream that uses a cast of another stream must wait for it, and
the other stream must wait before the cast is freed. A change of the weight makes it be cast anew; in PyTorch it is not.

Calls outside of autocast pay nothing for it: the engine's warm path looks in a cache of plans that is empty while any
thread autocasts, so that then, and only then, every call comes by `cast_inputs`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16, float32, float64
from flambeau.core.host.turn_scheduler import seat
from flambeau.ops.copy import weight_cast
from flambeau.ops.op import Op, table
from flambeau.tape.mode import mode, recording
from flambeau.tensor.tensor import Tensor

KINDS = ("cuda", "cpu")
# Kinds of devices without tensors, whose autocast can be switched and has no effect: kind -> its lower precision.
ABSENT = dict.fromkeys(("mps", "xpu", "mtia", "ipu", "privateuseone"), float16)
ABSENT |= dict.fromkeys(("xla", "hpu", "maia"), bfloat16)


class _Local(threading.local):
    """One thread's choices. `alone`: inside a function whose inputs were cast, nothing is cast again."""

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
    """Take the engine's way to run an operator on one tensor: the engine imports this module."""
    global _launch
    _launch = launch


def subscribe(changed: Callable[[], None]) -> None:
    """Call `changed()` after the first thread begins to autocast and after the last one ends."""
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
    """float32 if one of them is; float64 neither counts nor changes."""
    wide = any(isinstance(t, Tensor) and t.meta.dtype is float32 and eligible(t, kind) for t in tensors)
    return _float32(tensors, kind) if wide else _lower(tensors, kind)


def _volumes(tensors: Sequence[Any], kind: str) -> list[Any]:
    """float32 for what has three dimensions of space."""
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
    """Whether autocast for a kind of device may cast it: floating, narrower than float64, and there."""
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
    """A leaf that requires a gradient, and no view: what is cast again and again."""
    history = t.history
    return history is not None and history.base is None and t.is_leaf and t.requires_grad


# -- the lists --------------------------------------------------------------------------------------------

Policy = Callable[[Sequence[Any], str], list[Any]]
_LISTS: dict[str, dict[Policy, str]] = {
    "cuda": {
        _lower: (
            "matmul addmm convolution prelu scaled_dot_product_attention einsum linear addr linalg_vecdot lstm gru "
            "rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"
        ),
        _float32: (
            "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
            "group_norm rms_norm norm logsumexp interpolate softmax log_softmax cumprod cumsum prod sum "
            "nll_loss mse_loss huber_loss smooth_l1_loss l1_loss kl_div binary_cross_entropy_with_logits "
            "multi_margin_loss multilabel_margin_loss poisson_nll_loss cosine_embedding_loss hinge_embedding_loss "
            "margin_ranking_loss soft_margin_loss triplet_margin_loss cosine_similarity pdist dist cdist renorm "
            "matrix_norm vector_norm"
        ),
        _widest: (
            "addcdiv addcmul atan2 bilinear linalg_cross dot vdot grid_sample index_put tensordot scatter_add"
        ),
        _refuse: "binary_cross_entropy",
    },
    "cpu": {
        _lower: (
            "matmul addmm convolution prelu scaled_dot_product_attention linear linalg_vecdot lstm"
        ),
        _float32: (
            "nll_loss cross_entropy mse_loss huber_loss smooth_l1_loss l1_loss kl_div binary_cross_entropy "
            "binary_cross_entropy_with_logits multi_margin_loss multilabel_margin_loss poisson_nll_loss "
            "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss triplet_margin_loss "
            "ctc_loss cdist grid_sample prod quantile polar trace max_unpool fft "
            "reflect_pad1d reflect_pad2d replicate_pad1d replicate_pad2d replicate_pad3d geqrf linalg_cholesky_ex "
            "linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv_ex "
            "linalg_lstsq linalg_qr linalg_solve_ex linalg_svd linalg_svdvals"
        ),
        _volumes: "avg_pool max_pool adaptive_avg_pool adaptive_max_pool",
        _as_is: "mv addmv dot vdot",
    },
}  # fmt: skip
_policies: dict[str, dict[str, Policy]] = {
    kind: {name: policy for policy, names in lists.items() for name in names.split()}
    for kind, lists in _LISTS.items()
}


@functools.cache
def _policies_of_operators(kind: str) -> dict[Op, Policy]:
    """The policies of records; asked for first when all records are there."""
    return {table[name]: policy for name, policy in _policies[kind].items() if name in table}


def _kind_of(args: Sequence[Any]) -> str | None:
    """The kind of device whose lists count for these arguments; None if it does not autocast here."""
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


def cast_inputs(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a call as the lists want them: `args` itself where nothing changes."""
    kind = _kind_of(args)
    policy = None if kind is None else _policies_of_operators(kind).get(op)
    if policy is None:
        return args
    assert kind is not None
    cast = policy(args, kind)
    return args if all([a is b for a, b in zip(cast, args, strict=True)]) else cast  # noqa: C419 (faster than a generator)


def cast(name: str, *tensors: Any) -> Sequence[Any]:
    """The inputs (some may be None) of a function of several records as the lists want them."""
    kind = _kind_of(tensors)
    policy = None if kind is None else _policies[kind].get(name)
    return tensors if policy is None else policy(tensors, kind)  # type: ignore[arg-type]


def call_cast(name: str, function: Callable[..., Any], tensors: Sequence[Any], *more: Any) -> Any:
    """`function(*tensors, *more)` with tensors as the lists want them, after which nothing inside is cast."""
    kind = _kind_of(tensors)
    policy = None if kind is None else _policies[kind].get(name)
    if policy is None:
        return function(*tensors, *more)
    tensors = policy(tensors, kind)  # type: ignore[arg-type]
    local.alone = True
    try:
        return function(*tensors, *more)
    finally:
        local.alone = False
