"""`Recurrence`: one direction of one recurrent layer over all of its time steps, as one autograd node.

# Note [Recurrence]
A row is the input of one time step of one sequence. The rows of all steps are concatenated, (N, ...); a step has a row
for each sequence that has not ended. The input's part of all gates is one product before the first step. A step is a
product that adds the state's part, and a cell. In backward, a step is a cell and a product; gradients of weights and
inputs are products over all rows, after the last step. If backward itself is recorded, the layer runs again as ordinary
recorded operations, which are differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau.autograd.function import Function
from flambeau.nn.functional.dropout import dropout
from flambeau.ops.nn import recurrent as ops
from flambeau.ops.pointwise import pointwise_backward as backward
from flambeau.ops.pointwise import pointwise_functions as pointwise
from flambeau.ops.shape.joining import cat
from flambeau.runtime.hooks.host_work import library_call
from flambeau.tape.mode import mode as tape
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.extents import require_backed
from flambeau.tensor.call import call, call_into, empty
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.functions.joining import stack
from flambeau.tensor.tensor import Tensor, make

Given = Tensor | None
_ACTIVATIONS = {"RNN_TANH": pointwise.tanh, "RNN_RELU": pointwise.relu}
_BACKWARD = {"RNN_TANH": backward.tanh_backward, "RNN_RELU": backward.relu_backward}


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the concatenation of tensors, in new memory."""
    result: Tensor = call(cat, parts, (dim,))
    return result


def concatenate_into(out: Tensor, parts: Sequence[Tensor]) -> None:
    """Store the concatenation of tensors along their first dim in `out`."""
    call_into(cat, (out,), parts, (0,))


class Steps:
    """The number of rows of each time step, which never grows, and the order of the steps."""

    def __init__(self, sizes: Sequence[int], reverse: bool) -> None:
        self.sizes, self.reverse = list(sizes), reverse
        self.order = range(len(self.sizes))[:: -1 if reverse else 1]
        self.even = self.sizes[0] == self.sizes[-1]

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """Return the rows of each step, as views without autograd nodes if nothing is recorded."""
        parts: Sequence[Tensor]
        if tape.recording:
            parts = x.split(self.sizes)
            return parts
        require_backed(x)
        meta, ptr = x.meta, x.ptr
        row = meta.strides[0] * meta.itemsize
        metas = {n: meta.with_((n, *meta.shape[1:])) for n in set(self.sizes)}
        parts = []
        for n in self.sizes:
            parts.append(make(metas[n], x.memory, ptr))
            ptr += n * row
        return parts

    def before(self, out: Tensor, first: Tensor) -> Tensor:
        """Return the state before each row's step. `out` is the state after it, `first` the state before the first
        step.
        """
        if self.even:
            rest = out.shape[0] - first.shape[0]
            return concatenate((out[first.shape[0] :], first) if self.reverse else (first, out[:rest]))
        parts, running, states = self.split(out), Running(first), {}
        state = None
        for t in self.order:
            states[t] = running.fit(state, self.sizes[t])
            state = parts[t]
        return concatenate([states[t] for t in range(len(parts))])


class Running:
    """The states of the sequences that are running. States of sequences that begin are from `source`; states of
    sequences that end are stored.
    """

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.aside: list[Tensor] = []

    def fit(self, state: Given, count: int) -> Tensor:
        """Return the state of the first `count` sequences."""
        if state is None:
            return self.source[:count]
        have = state.meta.shape[0]
        if count > have:
            return concatenate((state, self.source[have:count]))
        if count < have:
            self.aside.append(state[count:])
            return state[:count]
        return state

    def all(self, state: Tensor) -> Tensor:
        """Return the last state of every sequence, in separate memory."""
        return concatenate((state, *reversed(self.aside)))


class Layers(NamedTuple):
    """The structure of a recurrent network over sequences.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        sizes: The number of rows of each time step.
        count: Number of layers.
        directions: 2 if each layer runs in both directions, else 1.
        has_biases: True if each layer and direction has two biases.
        dropout: The probability that an element between two layers is zeroed; 0 if the network does not train.
    """

    mode: str
    sizes: tuple[int, ...]
    count: int
    directions: int
    has_biases: bool
    dropout: float

    def weights(self, params: Sequence[Tensor], cell: int) -> tuple[Given, ...]:
        """Return w_ih, w_hh, b_ih, b_hh and the projection of a layer and direction; None for missing ones."""
        each = len(params) // (self.count * self.directions)
        products, rest = params[cell * each : cell * each + 2], params[cell * each + 2 : (cell + 1) * each]
        biases = rest[:2] if self.has_biases else (None, None)
        projection = rest[2:] if self.has_biases else rest
        return (*products, *biases, projection[0] if projection else None)


def run_steps(
    layers: Layers, data: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the outputs and last states of a network, layer by layer and step by step."""
    first = [x.unbind(0) for x in states]
    steps = [Steps(layers.sizes, reverse) for reverse in (False, True)[: layers.directions]]
    last = []
    for layer in range(layers.count):
        outputs = []
        for direction, how in enumerate(steps):
            at = layer * layers.directions + direction
            h, c = first[0][at], first[1][at] if len(first) > 1 else None
            out, *ends = Recurrence.apply(layers.mode, how, data, h, c, *layers.weights(params, at))
            outputs.append(out)
            last.append(ends)
        data = outputs[0] if layers.directions == 1 else concatenate(outputs, 1)
        if layers.dropout and layer < layers.count - 1:
            data = dropout(data, layers.dropout, True)
    return (data, *[stack(ends) for ends in zip(*last, strict=True)])


def _product(a: Tensor, b: Tensor, added: Given = None) -> Tensor:
    """Return a @ b, plus `added`. TF32 by cuDNN's flag."""
    if added is None:
        result: Tensor = call(ops.recurrent_mm, (a, b))
    else:
        result = call(ops.recurrent_addmm, (added, a, b, 1, 1))
    return result


def _product_into(out: Tensor, a: Tensor, b: Tensor, added: Given = None) -> Tensor:
    if added is None:
        result: Tensor = call_into(ops.recurrent_mm, (out,), (a, b))
    else:
        result = call_into(ops.recurrent_addmm, (out,), (added, a, b, 1, 1))
    return result


def _shares(mode: str, x: Tensor, w_ih: Tensor, b_ih: Given, b_hh: Given) -> Tensor:
    """Return the input's contribution to all gates, with the biases. A GRU adds the bias of the state separately."""
    bias = b_ih if mode == "GRU" or b_ih is None else b_ih + b_hh
    return _product(x, w_ih.t(), bias)


class Recurrence(Function):
    """One recurrent layer in one direction: see Note [Recurrence].

    `apply(mode, steps, x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)` returns the states (N, P), the last states (B, P) and,
    for an LSTM, the last cell states (B, H).

    Args:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        x, h, c: (N, I), (B, P), and (B, H) or None.
        b_ih, b_hh: Biases, or None.
        w_hr: Projection (P, H), or None.
    """

    @staticmethod
    def forward(
        ctx: Any, mode: str, steps: Steps, x: Tensor, h: Tensor, c: Given, w_ih: Tensor, w_hh: Tensor, b_ih: Given,
        b_hh: Given, w_hr: Given,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.mode, ctx.steps = mode, steps
        run = {"LSTM": _lstm, "GRU": _gru}.get(mode, _plain)
        with library_call():
            gates = _shares(mode, x, w_ih, b_ih, b_hh)
            results, kept = run(mode, steps, gates, h, c, w_hh.t(), b_hh, w_hr)
        ctx.save_for_backward(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, results[0], *kept)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if tape.recording:
            return (None, None, *_recorded_back(ctx, saved[:8], grads))
        back = {"LSTM": _lstm_back, "GRU": _gru_back}.get(ctx.mode, _plain_back)
        with library_call():
            found = back(ctx.mode, ctx.steps, saved, grads)
            return (None, None, *_by_input(ctx.steps, ctx.needs_input_grad[2:], saved, *found))


Forward = tuple[tuple[Tensor, ...], tuple[Given, ...]]
"""What a layer gives, and what it keeps for the way back."""
Backward = tuple[Tensor, Tensor, Tensor, Given, Given]
"""Gradients of the gates: the input's share and the state's; of the first states; of the projection."""


# -- forward --------------------------------------------------------------------------------------------------------


def _plain(
    mode: str, steps: Steps, gates: Tensor, h: Tensor, c: Given, w_hh: Tensor, b_hh: Given, w_hr: Given
) -> Forward:
    """Compute the states in the memory of the gates."""
    parts, running = steps.split(gates), Running(h)
    state = None
    for t in steps.order:
        before = running.fit(state, steps.sizes[t])
        state = _product_into(parts[t], before, w_hh, parts[t])
        call_into(_ACTIVATIONS[mode], (state,), (state,))
    assert state is not None
    return (gates, running.all(state)), ()


def _lstm(
    mode: str, steps: Steps, gates: Tensor, h: Tensor, c: Given, w_hh: Tensor, b_hh: Given, w_hr: Given
) -> Forward:
    assert c is not None
    hidden, cells = (gates.new_empty((gates.shape[0], c.shape[1])) for _ in range(2))
    out = hidden if w_hr is None else gates.new_empty((gates.shape[0], w_hr.shape[0]))
    parts = zip(*[steps.split(x) for x in (gates, hidden, cells, out)], strict=True)
    listed, running, running_cells = list(parts), Running(h), Running(c)
    state = cell = None
    for t in steps.order:
        gate, target, new_cell, new = listed[t]
        before = running.fit(state, steps.sizes[t])
        cell = running_cells.fit(cell, steps.sizes[t])
        _product_into(gate, before, w_hh, gate)
        call_into(ops.lstm_cell, (target, new_cell), (gate, cell))
        if w_hr is not None:
            _product_into(new, target, w_hr.t())
        state, cell = new, new_cell
    assert state is not None and cell is not None
    kept = (gates, cells, None if w_hr is None else hidden)
    return (out, running.all(state), running_cells.all(cell)), kept


def _gru(
    mode: str, steps: Steps, gates: Tensor, h: Tensor, c: Given, w_hh: Tensor, b_hh: Given, w_hr: Given
) -> Forward:
    shares, out = gates.new_empty(gates.shape), gates.new_empty((gates.shape[0], h.shape[1]))
    listed, running = list(zip(*[steps.split(x) for x in (gates, shares, out)], strict=True)), Running(h)
    state = None
    for t in steps.order:
        gate, share, new = listed[t]
        before = running.fit(state, steps.sizes[t])
        _product_into(share, before, w_hh, b_hh)
        state = call_into(ops.gru_cell, (new,), (gate, share, before))
    assert state is not None
    return (out, running.all(state)), (gates, shares)


# -- back -----------------------------------------------------------------------------------------------------------


class _Carried:
    """The gradients of the state during backward: of the state after a step and of the state before it."""

    def __init__(self, steps: Steps, grad: Tensor, last: Tensor, w_hh: Tensor) -> None:
        self.steps, self.parts, self.w_hh = steps, steps.split(grad), w_hh
        self.running = Running(last)
        first = steps.order[-1]
        self.now = self.running.fit(None, steps.sizes[first]) + self.parts[first]
        self.following = [*steps.order[::-1][1:], None]
        self.at = 0

    def more(self) -> Given:
        """Return the gradient of the previous state's output, if its sequences are those of this step; it is added to
        `direct`.
        """
        t = self.following[self.at]
        return None if t is None or self.steps.sizes[t] != self.now.meta.shape[0] else self.parts[t]

    def pass_on(self, gates: Tensor, direct: Given = None, whole: bool = False) -> None:
        """Compute the gradient of the previous state, from the gates' gradients and `direct`.

        Args:
            whole: True if `direct` includes the result of `more`.
        """
        t, self.at = self.following[self.at], self.at + 1
        if t is None or whole:
            self.now = _product(gates, self.w_hh, direct)
        elif direct is None and self.steps.sizes[t] == gates.meta.shape[0]:
            self.now = _product(gates, self.w_hh, self.parts[t])
        else:
            back = _product(gates, self.w_hh, direct)
            self.now = self.running.fit(back, self.steps.sizes[t]) + self.parts[t]

    def first(self) -> Tensor:
        """Return the gradient of the first state of every sequence."""
        return self.running.all(self.now)


def _plain_back(mode: str, steps: Steps, saved: Sequence[Any], grads: Sequence[Tensor]) -> Backward:
    w_hh, out = saved[4], saved[8]
    gates = out.new_empty(out.shape)
    parts = list(zip(steps.split(gates), steps.split(out), strict=True))
    carried = _Carried(steps, grads[0], grads[1], w_hh)
    for t in reversed(steps.order):
        gate, state = parts[t]
        call_into(_BACKWARD[mode], (gate,), (carried.now, state))
        carried.pass_on(gate)
    return gates, gates, carried.first(), None, None


def _lstm_back(mode: str, steps: Steps, saved: Sequence[Any], grads: Sequence[Tensor]) -> Backward:
    c, w_hh, w_hr = saved[2], saved[4], saved[7]
    kept, cells, hidden = saved[9:12]
    gates = kept.new_empty(kept.shape)
    listed = [*map(steps.split, (gates, kept, steps.before(cells, c)))]
    carried, running = _Carried(steps, grads[0], grads[1], w_hh), Running(grads[2])
    states: dict[int, Tensor] = {}
    grad_cell = None
    for t in reversed(steps.order):
        gate, before, cell = (x[t] for x in listed)
        states[t] = carried.now
        grad = carried.now if w_hr is None else _product(carried.now, w_hr)
        grad_cell = running.fit(grad_cell, steps.sizes[t])
        new = empty(cell.meta)
        call_into(ops.lstm_cell_backward, (gate, new), (grad, grad_cell, before, cell))
        grad_cell = new
        carried.pass_on(gate)
    assert grad_cell is not None
    projection = None
    if w_hr is not None:
        projection = _product(concatenate([states[t] for t in range(len(states))]).t(), hidden)
    return gates, gates, carried.first(), running.all(grad_cell), projection


def _gru_back(mode: str, steps: Steps, saved: Sequence[Any], grads: Sequence[Tensor]) -> Backward:
    h, w_hh, out = saved[1], saved[4], saved[8]
    kept, kept_shares = saved[9:11]
    gates, shares = kept.new_empty(kept.shape), kept.new_empty(kept.shape)
    listed = [*map(steps.split, (gates, shares, kept, kept_shares, steps.before(out, h)))]
    carried = _Carried(steps, grads[0], grads[1], w_hh)
    for t in reversed(steps.order):
        gate, share, *inputs = (x[t] for x in listed)
        direct = empty(carried.now.meta)
        more = carried.more()
        args = (carried.now, *inputs) if more is None else (carried.now, *inputs, more)
        call_into(ops.gru_cell_backward, (gate, share, direct), args)
        carried.pass_on(share, direct, more is not None)
    return gates, shares, carried.first(), None, None


def _by_input(
    steps: Steps, needs: Sequence[bool], saved: Sequence[Any], gates: Tensor, shares: Tensor, h: Tensor, c: Given,
    projection: Given,
) -> list[Given]:  # fmt: skip
    """Return the gradients that are needed of x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr."""
    x, first, _, w_ih, _, _, _, _, out = saved[:9]
    bias = gates.sum(0) if needs[5] or (needs[6] and shares is gates) else None
    return [
        _product(gates, w_ih) if needs[0] else None,
        h,
        c,
        _product(gates.t(), x) if needs[3] else None,
        _product(shares.t(), steps.before(out, first)) if needs[4] else None,
        bias,
        bias if shares is gates else shares.sum(0) if needs[6] else None,
        projection,
    ]


# -- the layer as an ordinary program, for second derivatives --------------------------------------------------------


def _recorded_back(ctx: Any, inputs: Sequence[Any], grads: Sequence[Tensor]) -> list[Any]:
    """Return the gradients, themselves recorded."""
    with recording(True):
        alike = [None if x is None else x.view_as(x) for x in inputs]
        outputs = _run_recorded(ctx.mode, ctx.steps, *alike)
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        found = run_grad(outputs, [alike[i] for i in wanted], grads, None, True, True)
    given: list[Any] = [None] * len(inputs)
    for i, grad in zip(wanted, found, strict=True):
        given[i] = grad
    return given


def _run_recorded(
    mode: str, steps: Steps, x: Tensor, h: Tensor, c: Given, w_ih: Tensor, w_hh: Tensor, b_ih: Given, b_hh: Given,
    w_hr: Given,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute the results of `Recurrence` with ordinary recorded operations."""
    parts, running = steps.split(_shares(mode, x, w_ih, b_ih, b_hh)), Running(h)
    running_cells = None if c is None else Running(c)
    states: dict[int, Tensor] = {}
    state = cell = None
    for t in steps.order:
        before = running.fit(state, steps.sizes[t])
        if running_cells is not None:
            gates = _product(before, w_hh.t(), parts[t])
            state, cell = call(ops.lstm_cell, (gates, running_cells.fit(cell, steps.sizes[t])))
            state = state if w_hr is None else _product(state, w_hr.t())
        elif mode == "GRU":
            state = call(ops.gru_cell, (parts[t], _product(before, w_hh.t(), b_hh), before))
        else:
            state = call(_ACTIVATIONS[mode], (_product(before, w_hh.t(), parts[t]),))
        states[t] = state
    assert state is not None
    results = [concatenate([states[t] for t in range(len(parts))]), running.all(state)]
    if running_cells is not None:
        assert cell is not None
        results.append(running_cells.all(cell))
    return tuple(results)
