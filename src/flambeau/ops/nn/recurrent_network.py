"""Recurrent networks that a library runs as a whole, and their gradients.

These two operators run on real GPUs alone, where `Driver.recurrent_memory` has an answer. They have no reference
implementation: everywhere else the layers run step by step, with the operators of recurrent.py.

A call names its outputs and inputs, because some networks and some gradients lack some of them:

    x (N, I), h and c (layers * directions, B, ...)   the data and the first states
    weights                                           the buffer that holds all parameters
    y (N, directions * P), hy, cy                     the outputs and the last states
    reserve                                           what the forward pass keeps for the backward pass
    dy, dhy, dcy, dx, dh, dc, dweights                gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import uint8
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, RecurrentMemory, RecurrentNetwork, Routine
from flambeau.ops.op import Op, Operand, Signature, one_device
from flambeau.ops.pointwise.dtype_promotion import FLOATS

_PLACES = {"y": "y", "hy": "h", "cy": "c", "dx": "x", "dh": "h", "dc": "c"}
"""Output -> the tensor of equal shape."""


def shape_of(name: str, network: RecurrentNetwork, memory: RecurrentMemory) -> tuple[int, ...]:
    """Return the shape of an output of a network."""
    directions = 2 if network.bidirectional else 1
    state, cells = network.projection or network.hidden, network.layers * directions
    rows = sum(network.lengths) or network.steps * network.batch
    shapes: dict[str, tuple[int, ...]] = {
        "x": (rows, network.inputs), "y": (rows, directions * state), "h": (cells, network.batch, state),
        "c": (cells, network.batch, network.hidden), "dweights": (memory.weights,), "reserve": (memory.reserve,),
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


def _no_reference(launch: Launch) -> Body:
    raise NotSupportedError("only a library of a real GPU runs a recurrent network as a whole")


def _operator(name: str) -> Op:
    kernel = Kernel(name, _no_reference, cuda=Routine(library=f"nn.recurrent_network:{name}"))
    return Op(name, _rule, kernel, FLOATS, lambda make, kind: ())


recurrent_network = _operator("recurrent_network")
recurrent_network_backward = _operator("recurrent_network_backward")
