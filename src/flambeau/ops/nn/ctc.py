"""ctc_loss: minus the log-probability of each target under all its alignments.

Inputs: log_probs (T, N, C), targets (N, S) or concatenated, input lengths (N), target lengths (N). Params: (blank,
whether an infinite loss has the gradient zero). The recursions process one time step at a time, forward and, for the
gradient, backward, for all samples and states together.

The gradient is PyTorch's: it assumes that the probabilities of each time step sum to 1, and is the gradient by the
scores before log_softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU
from flambeau.ops.derivative_helpers import refuse_derivative
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device

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
    """Return the targets as (N, longest), padded with blanks."""
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
    """Return the states (N, 2 S + 1): the labels with a blank before, between and after them."""
    out = np.full((len(labels), 2 * labels.shape[1] + 1), blank, np.int64)
    out[:, 1::2] = labels
    return out


def _skips(states: Array, blank: int) -> Array:
    """Return True where a state may directly follow the state before the previous one: if their labels differ."""
    found: Array = np.zeros(states.shape, bool)
    found[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    return found


def _forward(probs: Array, states: Array, given: Array, blank: int) -> Iterator[Array]:
    """Yield each state's log-likelihood of the labels so far, time by time. It stays constant after a sample's end."""
    rows, skips = np.arange(len(states))[:, None], _skips(states, blank)
    alpha = np.full(states.shape, -np.inf, probs.dtype)
    if len(probs):
        alpha[:, :2] = probs[0][rows, states[:, :2]]
    yield alpha
    for t in range(1, len(probs)):
        one, two = np.full_like(alpha, -np.inf), np.full_like(alpha, -np.inf)
        one[:, 1:], two[:, 2:] = alpha[:, :-1], alpha[:, :-2]
        joined = np.logaddexp(np.logaddexp(alpha, one), np.where(skips, two, -np.inf))
        alpha = np.where((t < given)[:, None], joined + probs[t][rows, states], alpha)
        yield alpha


def _backward(probs: Array, states: Array, given: Array, wanted: Array, blank: int) -> Iterator[Array]:
    """Yield each state's log-likelihood of the remaining labels, from the last time to the first.

    It is -inf after a sample's end.
    """
    rows, skips = np.arange(len(states))[:, None], _skips(states, blank)
    ends = np.arange(states.shape[1]) - 2 * wanted[:, None]
    last = np.where((ends == 0) | (ends == -1), 0, -np.inf).astype(probs.dtype)
    beta = np.full_like(last, -np.inf)
    for t in range(len(probs) - 1, -1, -1):
        if t + 1 < len(probs):
            stay = beta + probs[t + 1][rows, states]
            one, two = np.full_like(beta, -np.inf), np.full_like(beta, -np.inf)
            one[:, :-1], two[:, :-2] = stay[:, 1:], np.where(skips, stay, -np.inf)[:, 2:]
            beta = np.logaddexp(np.logaddexp(stay, one), two)
        beta = np.where((given - 1 == t)[:, None], last, np.where((t < given)[:, None], beta, -np.inf))
        yield beta


def _likelihood(probs: Array, states: Array, given: Array, wanted: Array, blank: int) -> Array:
    *_, alpha = _forward(probs, states, given, blank)
    rows, end = np.arange(len(states)), 2 * wanted
    last = alpha[rows, np.minimum(end, states.shape[1] - 1)]
    before = alpha[rows, np.maximum(end - 1, 0)]
    found = np.where(wanted > 0, np.logaddexp(last, before), last)
    return np.where(given > 0, found, np.where(wanted == 0, 0.0, -np.inf))


def _flops(launch: Launch) -> int:
    return _flops_of(launch.inputs[:2])


def _flops_of(operands: Sequence[Any]) -> int:
    probs, targets = operands
    assert isinstance(probs, Meta) and isinstance(targets, Meta)
    return 40 * probs.shape[0] * targets.numel


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    lengths = np.array([6, 4]), np.array([3, 2])
    yield (make(6, 2, 5, low=-3, high=-1), np.array([[1, 2, 2], [3, 4, 0]]), *lengths), (0, False)
    yield (make(6, 2, 5, low=-3, high=-1), np.array([1, 2, 2, 3, 4]), *lengths), (0, False)


def _back(grad: Any, a: Any, b: Any, c: Any, d: Any, out: Any, params: Any, call: Any) -> Any:
    return call(ctc_loss_backward, (grad, a, b, c, d, out), params)


ctc_loss = define(
    Op(
        "ctc_loss",
        _rule,
        Kernel("ctc_loss", _host, _flops, cuda=Routine("nn.losses:ctc_loss")),
        (float32, float64),
        _samples,
        derivative=Derivative(_back),
        autocast=FLOAT32_ON_CPU,
    )
)


# -- the gradient: inputs grad (N), then those of the loss, then the loss ------------------------------------


def _backward_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    grad, *given, loss = operands
    found = _rule(given, params)
    (out,), probs = found.outputs, given[0]
    assert isinstance(grad, Meta) and isinstance(loss, Meta) and isinstance(probs, Meta)
    for x in (grad, loss):
        if x.shape != out.shape or x.dtype is not out.dtype:
            raise RuntimeError(
                f"ctc_loss_backward(): expected a gradient and a loss of shape {list(out.shape)} and dtype "
                f"{out.dtype}, but got {list(x.shape)} and {x.dtype}"
            )
    where = one_device(operands)
    gradient = Meta.contiguous_of(probs.shape, probs.dtype, where)
    return Signature((gradient,), (grad, *found.inputs, loss), params)


def _backward_host(launch: Launch) -> Body:
    blank, zero = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, probs, targets, given, wanted, loss = inputs
        states = _with_blanks(_padded_targets(targets, wanted, blank), blank)
        alphas = [*_forward(probs, states, given, blank)]
        rows, lost = np.arange(len(states))[:, None], np.isinf(loss)[:, None]
        betas = _backward(probs, states, given, wanted, blank)
        for t, beta in zip(range(len(probs) - 1, -1, -1), betas, strict=True):
            held = np.zeros_like(probs[t])  # the probability of each class at this time, given the target
            np.add.at(held, (rows, states), np.exp(alphas[t] + beta + loss[:, None]))
            found = np.where(lost, 0 if zero else np.nan, np.exp(probs[t]) - held) * grad[:, None]
            np.copyto(outputs[0][t], np.where((t < given)[:, None], found, 0), casting="unsafe")

    return body


def _backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (probs, targets, given, wanted), params in _samples(make, kind):
        yield (make(2), probs, targets, given, wanted, make(2, low=2, high=9)), params


ctc_loss_backward = define(
    Op(
        "ctc_loss_backward", _backward_rule,
        Kernel(
            "ctc_loss_backward", _backward_host, lambda launch: 3 * _flops_of(launch.inputs[1:3]),
            cuda=Routine("nn.losses:ctc_loss_backward"),
        ),
        (float32, float64), _backward_samples, derivative=refuse_derivative("_ctc_loss_backward"),
    )
)  # fmt: skip
