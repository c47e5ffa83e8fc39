"""`NetworkFunction`: layers of a recurrent network that the device runs as a whole, as one autograd node.

# Note [Whole recurrent networks]
All layers, directions and time steps are one launch: of cuDNN on real GPUs, if it is installed and supports the
network, and of the reference implementation on virtual GPUs and the CPU. On GPUs `torch.backends.cudnn.enabled` must be
True. cuDNN's parameters lie in one buffer, in its order: one kernel packs them at each call, and the gradients of
parameters are views of another such buffer. The reference implementation takes each parameter as it is. Values for the
backward pass are in the `reserve`, which cuDNN's backward pass overwrites, so that a second one through the node runs
the forward pass again. Dropout between layers is the ordinary operator, with a node for each layer, so that its random
numbers are the same on every device. The layers run step by step (Note [Recurrence]) if backward itself is recorded,
for the operations inside are recorded then, and if the device runs no whole network or calls are intercepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.dtype import float32
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.protocol import RecurrentMemory, RecurrentNetwork
from flambeau.nn.functional.dropout import dropout
from flambeau.nn.functional.recurrence import Layers, concatenate, concatenate_into, run_steps
from flambeau.ops.linalg.matmul import TF32_SINCE
from flambeau.ops.nn import recurrent_network as ops
from flambeau.runtime import system
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.mode import mode as tape
from flambeau.tape.mode import recording
from flambeau.tensor import interception
from flambeau.tensor.call import call
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor, make

Network = tuple[RecurrentNetwork, RecurrentMemory]


def run_network(
    layers: Layers, data: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """Return the outputs and last states of a network; None if the device does not run it as a whole."""
    kind = data.meta.device.type
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not flags.cudnn_enabled):
        return None
    if interception.count or launch_deferral.open_regions:
        return None
    if not layers.dropout or layers.count == 1:
        return _run_layers(layers, data, states, params)
    each, last = len(params) // layers.count, []
    single = layers._replace(count=1, dropout=0.0)
    for layer in range(layers.count):
        cells = slice(layer * layers.directions, (layer + 1) * layers.directions)
        first = [x[cells] for x in states]
        found = _run_layers(single, data, first, params[layer * each : (layer + 1) * each])
        if found is None:
            return None
        data = found[0] if layer == layers.count - 1 else dropout(found[0], layers.dropout, True)
        last.append(found[1:])
    return (data, *[concatenate(ends) for ends in zip(*last, strict=True)])


def _run_layers(
    layers: Layers, data: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    training = tape.recording and any(x.requires_grad for x in (data, *states, *params))
    context, tf32 = system.context_of(data.meta.device), False
    if data.dtype is float32 and flags.rnn_allow_tf32 and data.meta.device.type == "cuda":
        tf32 = (context.driver.device_properties(context.driver_index).major, 0) >= TF32_SINCE
    described = _describe(
        layers, data.meta, [x.meta for x in states], [x.meta for x in params], training, tf32
    )
    if described is None:
        return None
    memory = context.driver.recurrent_memory(context.driver_index, described)
    if memory is None:
        return None
    context.rounds_to_tf32 |= tf32  # for reports, see Note [TF32]
    found: tuple[Tensor, ...] = NetworkFunction.apply(
        layers, (described, memory), data, *_pair(states), *params
    )
    return found


def _describe(
    layers: Layers, data: Meta, states: Sequence[Meta], params: Sequence[Meta], training: bool, tf32: bool
) -> RecurrentNetwork | None:
    """Return the network as the driver knows it. None if it is empty or its tensors do not fit together."""
    cells, sizes, lstm = layers.count * layers.directions, layers.sizes, layers.mode == "LSTM"
    projected = len(params) // cells == 3 + 2 * layers.has_biases
    if data.ndim != 2 or params[1].ndim != 2 or (projected and params[-1].ndim != 2):
        return None
    hidden = params[-1].shape[1] if projected else params[1].shape[1]
    network = RecurrentNetwork(
        layers.mode, data.dtype, data.shape[1], hidden, params[-1].shape[0] if projected else 0, layers.count,
        layers.directions == 2, layers.has_biases, len(sizes), sizes[0], _lengths(sizes), training, tf32,
    )  # fmt: skip
    widths = (network.state, hidden)[: 1 + lstm]
    tensors = (data, *states, *params)
    fits = (
        [x.shape for x in params] == network.parameters
        and [x.shape for x in states] == [(cells, sizes[0], width) for width in widths]
        and all(x.dtype is data.dtype and x.device is data.device for x in tensors)
        and network.rows == data.shape[0]
        and all(x.numel for x in tensors)
        and (lstm or not projected)
        and sizes[-1] > 0
    )
    return network if fits else None


def _lengths(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of the sequences from the number of rows of each time step; () if all are equal."""
    if sizes[0] == sizes[-1]:
        return ()
    found, time = [0] * sizes[0], 0
    for time, size in enumerate(sizes, 1):
        for i in range(size):
            found[i] = time
    return tuple(found)


def _pair(states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    return states[0], states[1] if len(states) > 1 else None


class NetworkFunction(Function):
    """The layers of a recurrent network as a whole: see Note [Whole recurrent networks].

    `apply(layers, (network, memory), x, h, c, *params)` returns the outputs, the last states and, for an LSTM, the
    last cell states.
    """

    @staticmethod
    def forward(
        ctx: Any, layers: Layers, network: Network, x: Tensor, h: Tensor, c: Tensor | None, *params: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.layers, ctx.network, ctx.is_used = layers, network, False
        inputs = [None if t is None else t.contiguous() for t in (x, h, c)]
        weights = _pack(params, network[1]) if network[1].weights else None
        *results, reserve = _forward(network, *inputs, _weights(weights, params))
        ctx.save_for_backward(x, h, c, *params, *inputs, weights, results[0], reserve)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        inputs, (x, h, c, weights, y, reserve) = saved[:-6], saved[-6:]
        if tape.recording:
            return (None, None, *_recorded_back(ctx, inputs, grads))
        params, needed = inputs[3:], ctx.needs_input_grad[5:]
        given = _weights(weights, params)
        if ctx.is_used and weights is not None:
            reserve = _forward(ctx.network, x, h, c, given)[-1]
        ctx.is_used = True
        ends = dict(zip(("dy", "dhy", "dcy"), grads, strict=False))
        ends["dy"] = y.new_zeros(y.shape) if grads[0] is None else grads[0]
        operands = {"x": x, "h": h, "c": c, **given, "y": y, "reserve": reserve}
        operands |= {name: None if g is None else g.contiguous() for name, g in ends.items()}
        wanted = ["dx", "dh", *(["dc"] if c is not None else [])]
        if weights is None:
            wanted += [f"dparam{i}" for i, need in enumerate(needed) if need]
        elif any(needed):
            wanted.append("dweights")
        results = _run(ops.recurrent_network_backward, ctx.network, wanted, operands)
        found = dict(zip(wanted, results, strict=True))
        if weights is None:
            parts = [found.get(f"dparam{i}") for i in range(len(params))]
        else:
            parts = _parts(found.get("dweights"), [p.meta for p in params], ctx.network[1])
        return (None, None, found["dx"], found["dh"], found.get("dc"), *parts)


def _weights(packed: Tensor | None, params: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the operands that hold the parameters: a buffer of all of them, or each."""
    if packed is not None:
        return {"weights": packed}
    return {f"param{i}": x for i, x in enumerate(params)}


def _run(
    op: Any, network: Network, outputs: Sequence[str], operands: dict[str, Tensor | None]
) -> Sequence[Tensor]:
    """Return the outputs of one of the two operators. Operands that are None are missing."""
    inputs = {name: x for name, x in operands.items() if x is not None}
    names = (*outputs, *inputs)
    found: Sequence[Tensor] = call(op, tuple(inputs.values()), (*network, tuple(outputs), names))
    return found


def _forward(
    network: Network, x: Tensor, h: Tensor, c: Tensor | None, weights: dict[str, Tensor]
) -> list[Tensor | None]:
    """Return the outputs and last states, and last the reserve; None for it if the network does not train."""
    outputs = ["y", "hy", *(["cy"] if c is not None else [])]
    if network[0].training:
        outputs.append("reserve")
    found = _run(ops.recurrent_network, network, outputs, {"x": x, "h": h, "c": c, **weights})
    return [*found] if network[0].training else [*found, None]


def _pack(params: Sequence[Tensor], memory: RecurrentMemory) -> Tensor:
    """Return the buffer of all parameters, in the library's order."""
    weights = params[0].new_empty((memory.weights,))
    order = sorted(range(len(params)), key=memory.offsets.__getitem__)
    ends = [memory.offsets[i] + params[i].numel() for i in order]
    if ends[:-1] == [memory.offsets[i] for i in order[1:]]:  # without gaps, so that one kernel packs them
        concatenate_into(weights[: ends[-1]], [params[i].reshape(-1) for i in order])
    else:
        for part, x in zip(_parts(weights, [x.meta for x in params], memory), params, strict=True):
            part.copy_(x)
    return weights


def _parts(flat: Tensor | None, metas: Sequence[Meta], memory: RecurrentMemory) -> list[Tensor | None]:
    """Return views of a buffer of all parameters, in PyTorch's order."""
    if flat is None:
        return [None] * len(metas)
    size, found = flat.meta.itemsize, []
    for meta, offset in zip(metas, memory.offsets, strict=True):
        laid = Meta.contiguous_of(meta.shape, meta.dtype, meta.device)
        found.append(make(laid, flat.memory, flat.ptr + offset * size))
    return found


def _recorded_back(ctx: Any, inputs: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """Return the gradients, themselves recorded."""
    with recording(True):
        alike = [None if x is None else x.view_as(x) for x in inputs]
        states = [x for x in alike[1:3] if x is not None]
        outputs = run_steps(ctx.layers, alike[0], states, alike[3:])
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        chosen = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
        found = run_grad(
            [x for x, _ in chosen], [alike[i] for i in wanted], [g for _, g in chosen], None, True, True
        )
    given: list[Any] = [None] * len(inputs)
    for i, grad in zip(wanted, found, strict=True):
        given[i] = grad
    return given
