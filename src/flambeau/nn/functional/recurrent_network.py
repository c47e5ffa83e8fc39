"""`NetworkFunction`: layers of a recurrent network that a library runs as a whole, as one autograd node.

# Note [Recurrent networks of a library]
On real GPUs cuDNN runs all layers, directions and time steps in one call. It must be installed and support the network,
and `torch.backends.cudnn.enabled` must be True. Its parameters lie in one buffer, in cuDNN's order. One kernel packs
them at each call; the gradients of parameters are views of another such buffer. The library keeps values for the
backward pass in the `reserve`, which a backward pass overwrites. A second backward pass through the node runs the
forward pass again. Dropout between layers is the ordinary operator, with a node for each layer, so that its random
numbers are those of every other device. If backward itself is recorded, the layers run again step by step, see Note
[Recurrence].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.protocol import RecurrentMemory, RecurrentNetwork
from flambeau.nn.functional.dropout import dropout
from flambeau.nn.functional.recurrence import Layers, concatenate, concatenate_into, run_steps
from flambeau.ops.nn import recurrent_network as ops
from flambeau.runtime import system
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.hooks.host_work import library_call
from flambeau.tape.mode import mode as tape
from flambeau.tape.mode import recording
from flambeau.tensor import interception
from flambeau.tensor.call import call
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor, make

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
Network = tuple[RecurrentNetwork, RecurrentMemory]


def run_network(
    layers: Layers, data: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """Return the outputs and last states of a network; None if no library runs it."""
    if data.meta.device.type != "cuda" or not flags.cudnn_enabled:
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
    described = _describe(layers, data.meta, [x.meta for x in states], [x.meta for x in params], training)
    if described is None:
        return None
    context = system.context_of(data.meta.device)
    memory = context.driver.recurrent_memory(context.driver_index, described)
    if memory is None:
        return None
    if described.dtype.name == "float32" and described.tf32:
        context.rounds_to_tf32 = True  # for reports, see Note [TF32]
    found: tuple[Tensor, ...] = NetworkFunction.apply(
        layers, (described, memory), data, *_pair(states), *params
    )
    return found


def _describe(
    layers: Layers, data: Meta, states: Sequence[Meta], params: Sequence[Meta], training: bool
) -> RecurrentNetwork | None:
    """Return the network as the driver knows it. None if it is empty or its tensors do not fit together."""
    gates, sizes = _GATES[layers.mode], layers.sizes
    cells = layers.count * layers.directions
    each, lstm = len(params) // cells, layers.mode == "LSTM"
    expected = 2 + 2 * layers.has_biases
    if each not in (expected, expected + lstm) or data.ndim != 2 or params[1].ndim != 2:
        return None
    hidden = params[1].shape[0] // gates
    state = params[-1].shape[0] if each > expected else hidden
    if each > expected and state >= hidden:
        return None
    shapes: list[tuple[int, ...]] = []
    for cell in range(cells):
        width = data.shape[1] if cell < layers.directions else layers.directions * state
        shapes += [(gates * hidden, width), (gates * hidden, state)]
        shapes += [(gates * hidden,)] * (2 * layers.has_biases)
        shapes += [(state, hidden)] * (each - expected)
    widths = (state, hidden)[: 1 + lstm]
    tensors = (data, *states, *params)
    fits = (
        [x.shape for x in params] == shapes
        and [x.shape for x in states] == [(cells, sizes[0], width) for width in widths]
        and all(x.dtype is data.dtype and x.device is data.device for x in tensors)
        and sum(sizes) == data.shape[0]
        and all(x.numel for x in tensors)
        and sizes[-1] > 0
    )
    if not fits:
        return None
    return RecurrentNetwork(
        layers.mode, data.dtype, data.shape[1], hidden, state if state != hidden else 0, layers.count,
        layers.directions == 2, layers.has_biases, len(sizes), sizes[0], _lengths(sizes), training,
        flags.rnn_allow_tf32,
    )  # fmt: skip


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
    """The layers of a recurrent network in a library: see Note [Recurrent networks of a library].

    `apply(layers, (network, memory), x, h, c, *params)` returns the outputs, the last states and, for an LSTM, the
    last cell states.
    """

    @staticmethod
    def forward(
        ctx: Any, layers: Layers, network: Network, x: Tensor, h: Tensor, c: Tensor | None, *params: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.layers, ctx.network, ctx.is_used = layers, network, False
        with library_call():
            inputs = [None if t is None else t.contiguous() for t in (x, h, c)]
            weights = _pack(params, network[1])
            *results, reserve = _forward(network, *inputs, weights)
        ctx.save_for_backward(x, h, c, *params, *inputs, weights, results[0], reserve)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        inputs, (x, h, c, weights, y, reserve) = saved[:-6], saved[-6:]
        if tape.recording:
            return (None, None, *_recorded_back(ctx, inputs, grads))
        with library_call():
            if ctx.is_used:
                reserve = _forward(ctx.network, x, h, c, weights)[-1]
            ctx.is_used = True
            dy = y.new_zeros(y.shape) if grads[0] is None else grads[0].contiguous()
            ends = [None if g is None else g.contiguous() for g in grads[1:]]
            given = {"dy": dy, **dict(zip(("dhy", "dcy"), ends, strict=False))}
            operands = {"x": x, "h": h, "c": c, "weights": weights, "y": y, "reserve": reserve, **given}
            wanted = ["dx", "dh", *(["dc"] if c is not None else [])]
            if any(ctx.needs_input_grad[5:]):
                wanted.append("dweights")
            found = dict(
                zip(wanted, _run(ops.recurrent_network_backward, ctx.network, wanted, operands), strict=True)
            )
            parts = _parts(found.get("dweights"), [p.meta for p in inputs[3:]], ctx.network[1])
        return (None, None, found["dx"], found["dh"], found.get("dc"), *parts)


def _run(
    op: Any, network: Network, outputs: Sequence[str], operands: dict[str, Tensor | None]
) -> Sequence[Tensor]:
    """Return the outputs of one of the two operators. Operands that are None are missing."""
    inputs = {name: x for name, x in operands.items() if x is not None}
    names = (*outputs, *inputs)
    found: Sequence[Tensor] = call(op, tuple(inputs.values()), (*network, tuple(outputs), names))
    return found


def _forward(
    network: Network, x: Tensor, h: Tensor, c: Tensor | None, weights: Tensor
) -> list[Tensor | None]:
    """Return the outputs and last states, and last the reserve; None for it if the network does not train."""
    outputs = ["y", "hy", *(["cy"] if c is not None else [])]
    if network[0].training:
        outputs.append("reserve")
    found = _run(ops.recurrent_network, network, outputs, {"x": x, "h": h, "c": c, "weights": weights})
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
