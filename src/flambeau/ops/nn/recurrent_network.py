"""Recurrent networks that a device runs as a whole, and their gradients: cuDNN on real GPUs, NumPy elsewhere.

The rows of all time steps are concatenated. A step has a row for each sequence that has not ended, so that the states
of the sequences that run are the first rows of all states, in both directions.

A call names its outputs and inputs, because some networks and some gradients lack some of them:

    x (N, I), h and c (layers * directions, B, ...)   the data and the first states
    weights                                           the buffer that holds all parameters, or in its place
    param0, param1, ...                               the parameters in PyTorch's order
    y (N, directions * P), hy, cy                     the outputs and the last states
    reserve                                           what the forward pass keeps for the backward pass
    dy, dhy, dcy, dx, dh, dc, dweights, dparam0, ...  gradients
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from flambeau.core.dtype import uint8
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, RecurrentMemory, RecurrentNetwork, Routine
from flambeau.ops.copy import caster
from flambeau.ops.linalg.matmul import round_to_tf32
from flambeau.ops.nn import recurrent
from flambeau.ops.op import Op, Operand, Signature, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.work import recurrent_work

Array = np.ndarray[Any, Any]
Operands = Mapping[str, Array]
"""The arrays of a launch by their names."""
_PLACES = {"y": "y", "hy": "h", "cy": "c", "dx": "x", "dh": "h", "dc": "c"}
"""Output -> the tensor of equal shape."""


def shape_of(name: str, network: RecurrentNetwork, memory: RecurrentMemory) -> tuple[int, ...]:
    """Return the shape of an output of a network."""
    if name.startswith("dparam"):
        return network.parameters[int(name.removeprefix("dparam"))]
    shapes: dict[str, tuple[int, ...]] = {
        "x": (network.rows, network.inputs), "y": (network.rows, network.directions * network.state),
        "h": (network.cells, network.batch, network.state), "c": (network.cells, network.batch, network.hidden),
        "dweights": (memory.weights,), "reserve": (memory.reserve,),
    }  # fmt: skip
    return shapes[_PLACES.get(name, name)]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the outputs. Params: the network, its memory, the names of the outputs and those of all operands."""
    network, memory, outputs, names = params
    metas = [x for x in operands if isinstance(x, Meta)]
    where = one_device(metas)
    made = [
        Meta.contiguous_of(
            shape_of(name, network, memory), uint8 if name == "reserve" else network.dtype, where
        )
        for name in outputs
    ]
    return Signature(tuple(made), tuple(metas), (network, names))


# -- the reference implementation --------------------------------------------------------------------------------------


def _forward(launch: Launch) -> Body:
    """Return the body of the forward pass. Params: the network and the names of all operands."""
    cells, names = _Cells(launch), launch.params[1]
    return lambda outputs, inputs: cells.forward(dict(zip(names, [*outputs, *inputs], strict=True)))


def _backward(launch: Launch) -> Body:
    """Return the body of the backward pass. Params: the network and the names of all operands."""
    cells, names = _Cells(launch), launch.params[1]
    return lambda outputs, inputs: cells.backward(dict(zip(names, [*outputs, *inputs], strict=True)))


class _Cells:
    """The cells of a network, one for each layer and direction, and the order of their steps.

    Results of half precision are rounded after each step.
    """

    def __init__(self, launch: Launch) -> None:
        network: RecurrentNetwork = launch.params[0]
        if "weights" in launch.params[1]:
            raise NotSupportedError("parameters in a library's order have no reference implementation")
        kind = network.dtype
        self.network, self.kind, self.computing = network, kind, wide(kind).numpy
        self.widen = to_computing(kind, kind)
        self.narrow = caster(wide(kind), kind)
        self.factor: Callable[[Array], Array] = round_to_tf32 if network.tf32 else np.asarray
        sizes = [network.batch] * network.steps
        if network.lengths:
            sizes = [sum(length > t for length in network.lengths) for t in range(network.steps)]
        ends = list(accumulate(sizes))
        self.steps = [(slice(end - size, end), size) for end, size in zip(ends, sizes, strict=True)]

    # -- parts ----------------------------------------------------------------------------------------------------

    def _order(self, cell: int) -> Sequence[tuple[slice, int]]:
        """Return the rows and the number of sequences of each step, in the order in which a cell runs them."""
        return self.steps[::-1] if cell % self.network.directions else self.steps

    def _product(self, a: Array, b: Array) -> Array:
        product: Array = np.matmul(self.factor(a), self.factor(b))
        return product

    def _round(self, x: Array) -> Array:
        """Return values as the network's dtype holds them."""
        if self.computing == self.kind.numpy:
            return x
        narrow = np.empty(x.shape, self.kind.numpy)
        self.narrow(narrow, x)
        return self.widen(narrow)

    def _store(self, target: Array, x: Array) -> None:
        self.narrow(target, x.reshape(target.shape))

    def _parameters(self, at: Operands, cell: int) -> dict[str, Array]:
        """Return the parameters of a cell by their kind; missing ones are missing."""
        names = ["w_ih", "w_hh", *(["b_ih", "b_hh"] if self.network.biased else [])]
        if self.network.projection:
            names.append("w_hr")
        first = cell * len(names)
        return {name: self.widen(at[f"param{first + i}"]) for i, name in enumerate(names)}

    def _saved_part(self, reserve: Array, cell: int) -> dict[str, Array]:
        """Return the part of the reserve for a cell, as arrays of the network's dtype."""
        widths, rows = self.network.kept_widths, self.network.rows
        flat = reserve.view(self.kind.numpy)
        start, found = cell * rows * sum(widths.values()), {}
        for name, width in widths.items():
            found[name] = flat[start : start + rows * width].reshape(rows, width)
            start += rows * width
        return found

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, at: Operands) -> None:
        """Compute y and the last states hy and cy, and fill the reserve if it is among the operands."""
        network, data = self.network, self.widen(at["x"])
        for layer in range(network.layers):
            outs = []
            for cell in range(layer * network.directions, (layer + 1) * network.directions):
                kept, ends = self._run(cell, data, at)
                outs.append(kept["out"])
                for name, end in zip(("hy", "cy"), ends, strict=False):
                    self._store(at[name][cell], end)
                if "reserve" in at:
                    for name, target in self._saved_part(at["reserve"], cell).items():
                        self._store(target, kept[name])
            data = outs[0] if len(outs) == 1 else np.concatenate(outs, axis=1)
        self._store(at["y"], data)

    def _run(self, cell: int, data: Array, at: Operands) -> tuple[dict[str, Array], list[Array]]:
        """Run a cell over all steps. Return what it keeps, and its last states."""
        network, params = self.network, self._parameters(at, cell)
        gates = self._product(data, params["w_ih"].T)
        lstm, gru = network.mode == "LSTM", network.mode == "GRU"
        if network.biased:
            gates += params["b_ih"] if gru else params["b_ih"] + params["b_hh"]
        gates = self._round(gates)
        kept = {name: np.empty((network.rows, n), self.computing) for name, n in network.kept_widths.items()}
        h = self.widen(at["h"][cell]).copy()
        c = self.widen(at["c"][cell]).copy() if lstm else h
        weight = self.factor(params["w_hh"]).T
        for rows, n in self._order(cell):
            share = np.matmul(self.factor(h[:n]), weight)
            if gru:
                share = self._round(share + params["b_hh"] if network.biased else share)
                (new,) = recurrent.gru_values(gates[rows], share, h[:n])
                kept["shares"][rows] = share
            else:
                gate = np.add(gates[rows], share, out=share)
                gate = gates[rows] = self._round(gate)
                if lstm:
                    new, memory = recurrent.lstm_values(gate, c[:n])
                    kept["memory"][rows] = c[:n] = self._round(memory)
                else:
                    new = np.tanh(gate) if network.mode == "RNN_TANH" else np.maximum(gate, 0)
            new = self._round(new)
            if network.projection:
                kept["wide"][rows] = new
                new = self._round(self._product(new, params["w_hr"].T))
            kept["out"][rows] = h[:n] = new
        if "gates" in kept:
            kept["gates"] = gates
        return kept, [h, c] if lstm else [h]

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, at: Operands) -> None:
        """Compute the gradients dx, dh and dc of the data and the first states, and those of parameters if asked."""
        network, grad = self.network, self.widen(at["dy"])
        for layer in reversed(range(network.layers)):
            cells = range(layer * network.directions, (layer + 1) * network.directions)
            data = self.widen(at["x"]) if not layer else self._outputs(at, layer - 1)
            below = np.zeros(data.shape, self.computing)
            for side, cell in enumerate(cells):
                part = grad[:, side * network.state : (side + 1) * network.state]
                below += self._run_back(cell, data, part, at)
            grad = self._round(below)
        self._store(at["dx"], grad)

    def _outputs(self, at: Operands, layer: int) -> Array:
        cells = range(layer * self.network.directions, (layer + 1) * self.network.directions)
        return np.concatenate(
            [self.widen(self._saved_part(at["reserve"], cell)["out"]) for cell in cells], axis=1
        )

    def _run_back(self, cell: int, data: Array, grad: Array, at: Operands) -> Array:
        """Walk back through a cell's steps. Store the gradients of its states and parameters; return the data's."""
        network, params = self.network, self._parameters(at, cell)
        kept = {name: self.widen(x) for name, x in self._saved_part(at["reserve"], cell).items()}
        lstm, gru = network.mode == "LSTM", network.mode == "GRU"
        h = self._before(cell, kept["out"], at["h"])
        c = self._before(cell, kept["memory"], at["c"]) if lstm else h
        gates = np.empty((network.rows, network.gates * network.hidden), self.computing)
        shares = np.empty_like(gates) if gru else gates
        projected = np.empty((network.rows, network.projection), self.computing)
        dh, dc = self._end(at, "dhy", cell, network.state), self._end(at, "dcy", cell, network.hidden)
        weight = self.factor(params["w_hh"])
        for rows, n in self._order(cell)[::-1]:
            new = dh[:n] + grad[rows]
            if network.projection:
                projected[rows] = new
                new = self._round(self._product(new, params["w_hr"]))
            if gru:
                gates[rows], share, direct = recurrent.gru_gradients(
                    new, kept["gates"][rows], kept["shares"][rows], h[rows]
                )
                shares[rows] = share
                share = self._round(share)
                dh[:n] = self._round(np.matmul(self.factor(share), weight) + direct)
                continue
            if lstm:
                gates[rows], memory = recurrent.lstm_gradients(new, dc[:n], kept["gates"][rows], c[rows])
                dc[:n] = self._round(memory)
            elif network.mode == "RNN_TANH":
                gates[rows] = new * (1 - kept["out"][rows] ** 2)
            else:
                gates[rows] = np.where(kept["out"][rows] <= 0, 0, new)
            dh[:n] = self._round(np.matmul(self.factor(self._round(gates[rows])), weight))
        self._store(at["dh"][cell], dh)
        if lstm:
            self._store(at["dc"][cell], dc)
        gates, shares = self._round(gates), self._round(shares)
        factors = {"w_ih": (gates, data), "w_hh": (shares, h), "w_hr": (projected, kept.get("wide", gates))}
        first = cell * len(params)
        for i, name in enumerate(params, first):
            if f"dparam{i}" in at:
                grads, rows_of = factors.get(name, (gates if name == "b_ih" else shares, None))
                found = grads.sum(0) if rows_of is None else self._product(grads.T, rows_of)
                self._store(at[f"dparam{i}"], found)
        return self._product(gates, params["w_ih"])

    def _before(self, cell: int, states: Array, first: Array) -> Array:
        """Return the state before each row's step, from the states after the steps and the first states."""
        found, state = np.empty_like(states), self.widen(first[cell]).copy()
        for rows, n in self._order(cell):
            found[rows] = state[:n]
            state[:n] = states[rows]
        return found

    def _end(self, at: Operands, name: str, cell: int, width: int) -> Array:
        """Return a copy of a last state's gradient; zeros if it has none."""
        if name in at:
            return self.widen(at[name][cell]).copy()
        return np.zeros((self.network.batch, width), self.computing)


def _operator(name: str, host: Callable[[Launch], Body]) -> Op:
    kernel = Kernel(
        name, host, flops=recurrent_work.flops, cuda=Routine(library=f"nn.recurrent_network:{name}"),
        work=getattr(recurrent_work, name), workspace=recurrent_work.workspace,
    )  # fmt: skip
    return Op(name, _rule, kernel, FLOATS, lambda make, kind: ())


recurrent_network = _operator("recurrent_network", _forward)
recurrent_network_backward = _operator("recurrent_network_backward", _backward)
