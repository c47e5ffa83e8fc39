"""The work of whole recurrent networks, and the memory that cuDNN takes for them."""

from __future__ import annotations

import math

from flambeau.core.dtype import uint8
from flambeau.driver.protocol import Launch, MatrixProduct, RecurrentNetwork, Work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND

# Note [The time of a recurrent network]
# Problem: The steps of a network depend on each other, so that latency counts, not bandwidth.
# Rule: Small states and weights stay in registers for all steps of a layer ("persistent" kernels): a step costs its
# exchange of the state. Other networks launch products and cells for each step. Cells overlap in the forward pass, each
# layer one step behind the layer below.
# The input's part of the gates, and gradients of weights, are products over all steps.
# Consequences: The constants are from inference and training of 130 random networks under PyTorch on H100 and H200
# (family `recurrent` of bench/accuracy), whose host took as long as the device in most of them.

_WIDEST_PLAIN, _WIDEST_GATED = 384, 128  # states of persistent kernels
_PERSISTENT_STEP, _STEP, _FURTHER_CELL = 1.2, 21.0, 11.0  # microseconds
_STEP_BACK_PLAIN, _STEP_BACK_GATED = (
    12.0,
    50.0,
)  # microseconds of a cell in a backward pass that is not persistent
_WORKSPACE = 8 << 20  # bytes of each cell's products
_BLOCKS_PLAIN, _BLOCKS_GATED = (
    (10.5, 4.6),
    (12.7, 12.6),
)  # rows x state at all, and of each cell: persistent kernels
_BLOCKS_STEP = 6.5, 8.0  # of each cell: one gate, and several


def _persistent(network: RecurrentNetwork) -> bool:
    widest = _WIDEST_GATED if network.gates > 1 else _WIDEST_PLAIN
    return (
        not (network.projection or network.lengths or network.dtype.itemsize > 4) and network.hidden <= widest
    )


def _elements(network: RecurrentNetwork) -> int:
    """Return the number of elements of all parameters."""
    return sum(map(math.prod, network.parameters))


def flops(launch: Launch) -> int:
    """Return the operations of the products of all steps; in a backward pass those of data and weights."""
    network: RecurrentNetwork = launch.params[0]
    passes = 2 if launch.kernel.name.endswith("backward") else 1
    return 2 * passes * network.rows * _elements(network)


def workspace(launch: Launch) -> tuple[int, ...]:
    """Return the bytes that cuDNN works on, beyond the reserve of a training step: weights in its order, and values."""
    network: RecurrentNetwork = launch.params[0]
    gated = network.gates > 1
    if _persistent(network):
        once, each = _BLOCKS_GATED if gated else _BLOCKS_PLAIN
    else:
        once, each = 0.0, _BLOCKS_STEP[gated]
    elements = round(network.rows * network.hidden * (once + each * network.cells))
    reserve = sum(meta.nbytes for meta in launch.operands if meta.dtype is uint8)
    weights = _elements(network) * network.dtype.itemsize
    return (_WORKSPACE * network.cells + weights + max(elements * network.dtype.itemsize - reserve, 0),)


def recurrent_network(launch: Launch) -> Work:
    """Return the work of a forward pass. See Note [The time of a recurrent network]."""
    network: RecurrentNetwork = launch.params[0]
    return _work(launch, network, _STEP + _FURTHER_CELL * (network.cells - 1), 1)


def recurrent_network_backward(launch: Launch) -> Work:
    """Return the work of a backward pass. See Note [The time of a recurrent network]."""
    network: RecurrentNetwork = launch.params[0]
    cell = _STEP_BACK_GATED if network.gates > 1 else _STEP_BACK_PLAIN
    return _work(launch, network, cell * network.cells, 2)


def _work(launch: Launch, network: RecurrentNetwork, step: float, products: int) -> Work:
    """Return the work of a pass.

    Args:
        launch: The launch.
        network: The network.
        step: Microseconds of a time step of all cells, unless the kernels are persistent.
        products: Number of products of each cell over all time steps.
    """
    steps = network.steps + network.layers - 1
    if _persistent(network):
        step, steps = _PERSISTENT_STEP, network.steps * network.layers
    rate = "tf32" if network.tf32 else launch.kernel.rate(launch)
    product = MatrixProduct(
        products * network.cells, network.rows, network.gates * network.hidden, max(network.inputs, network.state),
        rate, 16,
    )  # fmt: skip
    return Work(
        launch.nbytes, launch.nbytes, network.batch * network.gates * network.hidden, 0.0,
        step * steps * CYCLES_OF_A_MICROSECOND, product=product,
    )  # fmt: skip
