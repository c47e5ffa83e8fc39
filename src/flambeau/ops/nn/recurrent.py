"""Recurrent cells after their matrix products: gates and states to the next states, and their gradients, in one kernel.

Gates (B, 4H) or (B, 3H) are values before their activations, in PyTorch's order: input, forget, cell, output of an
LSTM; reset, update, new of a GRU, with separate parts for input and state. Backward recomputes the activations from the
gates, which is cheaper than saving them. `recurrent_mm` and `recurrent_addmm` are the products of a recurrent layer:
they use TF32 if cuDNN's flag allows it, see Note [TF32].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.linalg import matmul
from flambeau.ops.op import Derivative, Make, Op, Operand, Rule, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS
from flambeau.ops.shape.joining import cat

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]
Compute = Callable[..., Sequence[Array]]

# -- what cells share ---------------------------------------------------------------------------------------------


def _rule(inputs: Sequence[int], outputs: Sequence[int]) -> Callable[[Sequence[Operand], Params], Signature]:
    """Return an inference rule. `inputs` and `outputs` are widths as multiples of the width of the state."""

    def rule(operands: Sequence[Operand], params: Params) -> Signature:
        metas = [x for x in operands if isinstance(x, Meta)]
        where, state = one_device(metas), metas[-1]
        if state.dtype not in FLOATS:
            raise NotImplementedError(f"\"recurrent cell\" not implemented for '{state.dtype.torch_name}'")
        for x, gates in zip(metas, inputs, strict=False):
            if state.ndim != 2 or x.shape != (state.shape[0], gates * state.shape[1]):
                raise RuntimeError(
                    f"recurrent cell: expected gates of {gates} times the state's columns, got {list(x.shape)} and a "
                    f"state of {list(state.shape)}"
                )
            if x.dtype is not state.dtype:
                raise RuntimeError(
                    f"expected scalar type {state.dtype.torch_name} but found {x.dtype.torch_name}"
                )
        rows, columns = state.shape
        made = [Meta.contiguous_of((rows, gates * columns), state.dtype, where) for gates in outputs]
        return Signature(tuple(made), tuple(metas), params)

    return rule


def _host(compute: Compute) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        kind = launch.outputs[0].dtype
        widen = to_computing(kind, kind)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            for target, result in zip(outputs, compute(*map(widen, inputs)), strict=True):
                np.copyto(target, result, casting="unsafe")

        return body

    return host


def _flops(launch: Launch) -> int:
    return 12 * launch.operands[-1].numel


def _cell(
    name: str,
    compute: Compute,
    inputs: Sequence[int],
    outputs: Sequence[int],
    samples: Any,
    derivative: Derivative,
) -> Op:
    kernel = Kernel(name, _host(compute), _flops, cuda=Routine(f"nn.rnn_cells:{name}"))
    return define(
        Op(f"_thnn_fused_{name}", _rule(inputs, outputs), kernel, FLOATS, samples, derivative=derivative)
    )


def _sigmoid(x: Array) -> Array:
    y = np.negative(x)
    np.exp(y, out=y)
    y += 1
    return np.divide(1, y, out=y)


def _parts(gates: Array, count: int) -> list[Array]:
    width = gates.shape[1] // count
    return [gates[:, at * width : (at + 1) * width] for at in range(count)]


# -- LSTM: gates, cell state to new state, new cell state -----------------------------------------------------------


def lstm_values(gates: Array, cell: Array) -> Sequence[Array]:
    """Return the state and the cell state after one step of an LSTM."""
    i, f, g, o = _lstm_gates(gates)
    new = f * cell + i * g
    return o * np.tanh(new), new


def _lstm_gates(gates: Array) -> Sequence[Array]:
    """Return the gates of an LSTM. One call computes all sigmoids, because most cells are small."""
    i, f, _, o = _parts(_sigmoid(gates), 4)
    return i, f, np.tanh(_parts(gates, 4)[2]), o


def lstm_gradients(grad: Array, grad_cell: Array, gates: Array, cell: Array) -> Sequence[Array]:
    """Return the gradients of the gates and the cell state before one step of an LSTM."""
    i, f, g, o = _lstm_gates(gates)
    t = np.tanh(f * cell + i * g)
    whole = grad_cell + grad * o * (1 - t * t)
    parts = (
        whole * g * i * (1 - i), whole * cell * f * (1 - f), whole * i * (1 - g * g), grad * t * o * (1 - o),
    )  # fmt: skip
    return np.concatenate(parts, axis=1), whole * f


def _lstm_back(grads: Any, a: Any, b: Any, call: Any) -> Any:
    return call(lstm_cell_backward, (*grads, a, b))


def _lstm_back_twice(grads: Any, a: Any, b: Any, c: Any, d: Any, call: Any) -> list[Any]:
    """Return the second derivatives of an LSTM cell with respect to the gradients, the gates and the cell state."""
    pi, pf, pg, po = grads[0].chunk(4, 1)
    i, f, g, o = c.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    t = (f * d + i * g).tanh()
    si, sf, sg, so, st = i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o), 1 - t * t
    whole = b + a * o * st
    met = (
        pi * g * si + pf * d * sf + pg * i * sg + grads[1] * f
    )  # the derivative of the new cell state in the direction of `grads`
    inner = (a * so * po - met * a * o * t * 2) * st
    by_i = whole * (pi * g * (1 - 2 * i) + pg * sg) + inner * g
    by_f = whole * (pf * d * (1 - 2 * f) + grads[1]) + inner * d
    by_g = whole * (pi * si - pg * i * g * 2) + inner * i
    by_o = met * a * st + a * t * (1 - 2 * o) * po
    gates = (by_i * si, by_f * sf, by_g * sg, by_o * so)
    return [met * o * st + t * so * po, met, call(cat, gates, (1,)), whole * pf * sf + inner * f]


def _lstm_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for rows, columns in ((3, 5), (1, 4), (2, 0)):
        yield (make(rows, 4 * columns), make(rows, columns)), ()


def _lstm_backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for rows, columns in ((3, 5), (1, 4), (2, 0)):
        state = [make(rows, columns) for _ in range(3)]
        yield (state[0], state[1], make(rows, 4 * columns), state[2]), ()


lstm_cell = _cell("lstm_cell", lstm_values, (4, 1), (1, 1), _lstm_samples, Derivative(whole=_lstm_back))
lstm_cell_backward = _cell(
    "lstm_cell_backward",
    lstm_gradients,
    (1, 1, 4, 1),
    (4, 1),
    _lstm_backward_samples,
    Derivative(whole=_lstm_back_twice),
)


# -- GRU: the input's gates, the state's gates, state to new state --------------------------------------------------


def gru_values(inputs: Array, states: Array, state: Array) -> Sequence[Array]:
    """Return the state after one step of a GRU."""
    (xr, xz, xn), (hr, hz, hn) = _parts(inputs, 3), _parts(states, 3)
    new = np.tanh(xn + _sigmoid(xr + hr) * hn)
    return (new + _sigmoid(xz + hz) * (state - new),)


def gru_gradients(
    grad: Array, inputs: Array, states: Array, state: Array, more: Array | None = None
) -> Sequence[Array]:
    """Return the gradients of a GRU cell. `more` is added to the gradient of the state."""
    (xr, xz, xn), (hr, hz, hn) = _parts(inputs, 3), _parts(states, 3)
    r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
    new = np.tanh(xn + r * hn)
    by_new = grad * (1 - z) * (1 - new * new)
    by_z = grad * (state - new) * z * (1 - z)
    by_r = by_new * hn * r * (1 - r)
    direct = grad * z if more is None else grad * z + more
    return (
        np.concatenate((by_r, by_z, by_new), axis=1), np.concatenate((by_r, by_z, by_new * r), axis=1), direct,
    )  # fmt: skip


def _gru_back(grad: Any, a: Any, b: Any, c: Any, call: Any) -> Any:
    return call(gru_cell_backward, (grad, a, b, c))


def _gru_back_twice(grads: Any, a: Any, b: Any, c: Any, d: Any, call: Any) -> list[Any]:
    """Return the second derivatives of a GRU cell with respect to the gradient, the gates and the state."""
    (ar, az, an), (br, bz, bn) = grads[0].chunk(3, 1), grads[1].chunk(3, 1)
    (xr, xz, xn), (hr, hz, hn) = b.chunk(3, 1), c.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    sr, sz, sn = r * (1 - r), z * (1 - z), 1 - n * n
    pr, pz = ar + br, az + bz
    # the derivative of the argument of n's tanh in the direction of `grads`
    met = an + r * bn + hn * sr * pr
    by_new = a * (1 - z) * sn
    inner = -(a * (1 - z) * n * met * 2 + a * sz * pz) * sn
    by_h = by_new * sr * pr + inner * r
    by_r = (by_new * (bn + hn * (1 - 2 * r) * pr) + inner * hn) * sr
    by_z = a * ((d - n) * (1 - 2 * z) * pz - sn * met + grads[2]) * sz
    by_grad = (1 - z) * sn * met + (d - n) * sz * pz + z * grads[2]
    return [
        by_grad,
        call(cat, (by_r, by_z, inner), (1,)),
        call(cat, (by_r, by_z, by_h), (1,)),
        a * sz * pz,
        grads[2],
    ]


def _gru_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for rows, columns in ((3, 5), (1, 4), (2, 0)):
        yield (make(rows, 3 * columns), make(rows, 3 * columns), make(rows, columns)), ()


def _gru_backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for inputs, params in _gru_samples(make, kind):
        state = inputs[2].shape
        yield (make(*state), *inputs), params
        yield (make(*state), *inputs, make(*state)), params


gru_cell = _cell("gru_cell", gru_values, (3, 3, 1), (1,), _gru_samples, Derivative(whole=_gru_back))
gru_cell_backward = _cell(
    "gru_cell_backward",
    gru_gradients,
    (1, 3, 3, 1, 1),
    (3, 3, 1),
    _gru_backward_samples,
    Derivative(whole=_gru_back_twice),
)


# -- the products of a recurrent layer -----------------------------------------------------------------------------


def _two_dims(rule: Rule, first: int) -> Rule:
    """Return an inference rule like `rule` that requires two dimensions of the operands from position `first` on."""

    def of_matrices(operands: Sequence[Operand], params: Params) -> Signature:
        for x in operands[first : first + 2]:
            if not isinstance(x, Meta) or x.ndim != 2:
                raise RuntimeError("recurrent products: expected matrices")
        return rule(operands, params)

    return of_matrices


def _product_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4), make(4, 2)), ()


def _added_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 2), make(3, 4), make(4, 2), 1, 1), ()
    yield (make(2), make(3, 4), make(4, 2), 2, 3), ()


recurrent_mm: Op = define(
    Op(
        "recurrent_mm", _two_dims(matmul.matmul.rule, 0), matmul.matmul.kernel, FLOATS, _product_samples,
        flags=("rnn_allow_tf32",),
        derivative=Derivative(
            lambda grad, b, call: call(recurrent_mm, (grad, b.t())),
            lambda grad, a, call: call(recurrent_mm, (a.t(), grad)),
        ),
    )
)  # fmt: skip
recurrent_addmm: Op = define(
    Op(
        "recurrent_addmm", _two_dims(matmul.addmm.rule, 1), matmul.addmm.kernel, FLOATS, _added_samples,
        flags=("rnn_allow_tf32",),
        derivative=Derivative(
            lambda grad, d: grad * d,
            lambda grad, c, e, call: call(recurrent_mm, (grad, c.t())) * e,
            lambda grad, b, e, call: call(recurrent_mm, (b.t(), grad)) * e,
        ),
    )
)  # fmt: skip
