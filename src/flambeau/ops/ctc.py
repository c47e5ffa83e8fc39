"""ctc_loss: minus the log-probability of each target under all its alignments.

Inputs log_probs (T, N, C), targets (N, S) or all one after the other (sum of lengths), input lengths (N), target
lengths (N); params (blank,). The forward recursion goes through time, over all samples and states at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch, Routine
from flambeau.ops.indexing import one_device
from flambeau.ops.op import Make, Op, Operand, Sample, Signature, define

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    metas = [x for x in operands if isinstance(x, Meta)]
    where = one_device(metas)
    probs, targets, given, wanted = metas
    if probs.dtype not in (float32, float64):
        raise NotImplementedError(f"\"ctc_loss_cpu\" not implemented for '{probs.dtype.torch_name}'")
    if probs.ndim != 3 or targets.ndim not in (1, 2):
        raise RuntimeError(
            f"ctc_loss: expected log_probs (T, N, C) and targets of 1 or 2 dimensions, got {list(probs.shape)} and "
            f"{list(targets.shape)}"
        )
    _, batch, classes = probs.shape
    if not 0 <= params[0] < classes:
        raise RuntimeError("blank must be in label range")
    for name, lengths in (("input_lengths", given), ("target_lengths", wanted)):
        if lengths.shape != (batch,):
            raise RuntimeError(f"{name} must be of size batch_size")
    if targets.ndim == 2 and targets.shape[0] != batch:
        raise RuntimeError(f"Expected targets of batch size {batch}, got {list(targets.shape)}")
    return Signature((Meta.contiguous_of((batch,), probs.dtype, where),), tuple(metas), params)


def _host(launch: Launch) -> Body:
    blank = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        probs, targets, given, wanted = inputs
        if len(given) and int(given.max()) > len(probs):
            raise RuntimeError(
                f"Expected input_lengths to have value at most {len(probs)}, but got value {int(given.max())}"
            )
        labels = _padded_targets(targets, wanted, blank)
        np.copyto(outputs[0], -_likelihood(probs, _with_blanks(labels, blank), given, wanted, blank))

    return body


def _padded_targets(targets: Array, lengths: Array, blank: int) -> Array:
    """Targets (N, longest); past a target's length the blank."""
    longest = int(lengths.max()) if len(lengths) else 0
    at = np.arange(longest)
    within = at < lengths[:, None]
    if targets.ndim == 2:
        if longest > targets.shape[1]:
            raise RuntimeError(
                f"Expected tensor to have size at least {longest} at dimension 1, but got size {targets.shape[1]}"
            )
        found = targets[:, :longest]
    else:
        if int(lengths.sum()) > targets.size:
            raise RuntimeError(f"Expected targets of {int(lengths.sum())} elements, but got {targets.size}")
        starts = np.cumsum(lengths) - lengths
        found = (
            targets[np.where(within, starts[:, None] + at, 0)]
            if targets.size
            else np.zeros((len(lengths), 0), int)
        )
    return np.where(within, found, blank)


def _with_blanks(labels: Array, blank: int) -> Array:
    """A blank before, between and after the labels: the states, (N, 2 S + 1)."""
    out = np.full((len(labels), 2 * labels.shape[1] + 1), blank, np.int64)
    out[:, 1::2] = labels
    return out


def _likelihood(probs: Array, states: Array, given: Array, wanted: Array, blank: int) -> Array:
    count = states.shape[1]
    rows = np.arange(len(states))[:, None]
    skips = np.zeros(states.shape, bool)  # a state may follow the one but last if its label is another
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    alpha = np.full(states.shape, -np.inf, probs.dtype)
    if len(probs):
        alpha[:, :2] = probs[0][rows, states[:, :2]]
    for t in range(1, len(probs)):
        one, two = np.full_like(alpha, -np.inf), np.full_like(alpha, -np.inf)
        one[:, 1:], two[:, 2:] = alpha[:, :-1], alpha[:, :-2]
        joined = np.logaddexp(np.logaddexp(alpha, one), np.where(skips, two, -np.inf))
        alpha = np.where((t < given)[:, None], joined + probs[t][rows, states], alpha)
    end = 2 * wanted
    last = alpha[rows[:, 0], np.minimum(end, count - 1)]
    before = alpha[rows[:, 0], np.maximum(end - 1, 0)]
    found = np.where(wanted > 0, np.logaddexp(last, before), last)
    return np.where(given > 0, found, np.where(wanted == 0, 0.0, -np.inf))


def _flops(launch: Launch) -> int:
    probs, targets = launch.inputs[:2]
    assert isinstance(probs, Meta) and isinstance(targets, Meta)
    return 40 * probs.shape[0] * targets.numel


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    lengths = np.array([6, 4]), np.array([3, 2])
    yield (make(6, 2, 5, low=-3, high=-1), np.array([[1, 2, 2], [3, 4, 0]]), *lengths), (0,)
    yield (make(6, 2, 5, low=-3, high=-1), np.array([1, 2, 2, 3, 4]), *lengths), (0,)


ctc_loss = define(
    Op(
        "ctc_loss",
        _rule,
        Kernel("ctc_loss", _host, _flops, cuda=Routine("ctc_loss")),
        (float32, float64),
        _samples,
    )
)
