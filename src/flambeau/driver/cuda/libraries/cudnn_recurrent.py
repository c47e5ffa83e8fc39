"""Recurrent networks of cuDNN: `RecurrentPlan`, the descriptors of a network, and the memory that it needs.

One call runs all layers and directions over all time steps, forward or backward
(https://docs.nvidia.com/deeplearning/cudnn/latest/api/cudnn-adv-library.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from flambeau.core.dtype import float32, float64
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries import cudnn
from flambeau.driver.protocol import RecurrentMemory, RecurrentNetwork

_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}  # cudnnRNNMode_t
_STANDARD, _PERSIST_SMALL = 0, 3  # cudnnRNNAlgo_t
_NO_BIAS, _DOUBLE_BIAS = 0, 2  # cudnnRNNBiasMode_t
_DEFAULT_MATH, _FMA_MATH = 0, 3  # cudnnMathType_t
_PACKED_ROWS = 1  # cudnnRNNDataLayout_t: the rows of all steps, concatenated
_INFERENCE, _TRAINING = 0, 1  # cudnnForwardMode_t
_ADD = 0  # cudnnWgradMode_t
_PROJECTION = 8  # the number of the projection among the matrices of an LSTM
_BASE = 1 << 30  # an address from which the library computes those of parameters; it is not read
_MOST = 1024  # networks whose memory a device remembers

_SIGNATURES = {
    "cudnnCreateRNNDescriptor": "p", "cudnnDestroyRNNDescriptor": "p", "cudnnSetRNNDescriptor_v8": "piiiiiiiiiiiipi",
    "cudnnCreateDropoutDescriptor": "p", "cudnnDestroyDropoutDescriptor": "p", "cudnnSetDropoutDescriptor": "ppfpzl",
    "cudnnCreateRNNDataDescriptor": "p", "cudnnDestroyRNNDataDescriptor": "p", "cudnnSetRNNDataDescriptor": "piiiiipp",
    "cudnnCreateTensorDescriptor": "p", "cudnnDestroyTensorDescriptor": "p", "cudnnSetTensorNdDescriptor": "piipp",
    "cudnnGetRNNWeightSpaceSize": "ppp", "cudnnGetRNNTempSpaceSizes": "ppippp",
    "cudnnGetRNNWeightParams": "ppizpipppp", "cudnnRNNForward": "ppi" + "p" * 11 + "zpzpzp",
    "cudnnRNNBackwardData_v8": "p" * 16 + "zpzpzp", "cudnnRNNBackwardWeights_v8": "ppi" + "p" * 7 + "zpzpzp",
}  # fmt: skip


class _Functions:
    """The library's functions for recurrent networks on one device, and the memory of networks that were asked for."""

    def __init__(self, dnn: cudnn.Dnn) -> None:
        self._calls = {name: dnn.library.function(name, kinds) for name, kinds in _SIGNATURES.items()}
        self.memories: dict[RecurrentNetwork, RecurrentMemory | None] = {}

    def __getitem__(self, name: str) -> Callable[..., None]:
        return self._calls[name]


def _functions(device: CudaDevice) -> tuple[cudnn.Dnn, _Functions] | None:
    """Return cuDNN on a device and its functions; None if it is not installed or too old."""
    dnn = cudnn.of(device)
    if dnn is None:
        return None
    if dnn.recurrent is None:
        try:
            dnn.recurrent = _Functions(dnn)
        except NotSupportedError:
            return None
    return dnn, dnn.recurrent


def memory_of(device: CudaDevice, network: RecurrentNetwork) -> RecurrentMemory | None:
    """Return the memory that cuDNN needs to run a network. None if cuDNN is missing or refuses the network."""
    found = _functions(device)
    if found is None or network.dtype not in cudnn.DATA:
        return None
    memories = found[1].memories
    if network not in memories:
        if len(memories) >= _MOST:
            memories.clear()
        memories[network] = _measure(device, network)
    return memories[network]


def _measure(device: CudaDevice, network: RecurrentNetwork) -> RecurrentMemory | None:
    try:
        plan = RecurrentPlan(device, network)
    except (DriverError, NotSupportedError):
        return None
    try:
        return plan.memory()
    except DriverError:
        return None
    finally:
        plan.close()


def _algorithm(network: RecurrentNetwork) -> int:
    """Return the algorithm of cuDNN. The one for small states keeps them in registers and shared memory for all time
    steps.
    """
    if network.projection or network.lengths or network.dtype is float64:
        return _STANDARD
    widest = 128 if network.gates > 1 else 256
    return _PERSIST_SMALL if network.hidden <= widest else _STANDARD


class RecurrentPlan:
    """cuDNN's descriptors of a recurrent network on a device.

    Attributes:
        work: Bytes of workspace of each call.
        reserve: Bytes that the forward pass keeps for the backward pass.

    Raises:
        DriverError: If cuDNN refuses the network.
        NotSupportedError: If cuDNN is not installed or too old.
    """

    def __init__(self, device: CudaDevice, network: RecurrentNetwork) -> None:
        found = _functions(device)
        if found is None:
            raise NotSupportedError("cuDNN's recurrent networks are not on this machine")
        self._dnn, self._calls = found
        self._network = network
        self._closers: list[Callable[[], None]] = []
        try:
            self._rnn = self._describe_network()
            self._x = self._describe_rows(network.inputs)
            self._y = self._describe_rows(network.directions * network.state)
            self._h = self._describe_states(network.state)
            self._c = self._describe_states(network.hidden)
            self.weights = self._size("cudnnGetRNNWeightSpaceSize")
            self.work, self.reserve = self._temporary()
        except BaseException:
            self.close()
            raise

    # -- descriptors ----------------------------------------------------------------------------------
    def _create(self, kind: str) -> int:
        made = c_void_p()
        self._calls[f"cudnnCreate{kind}Descriptor"](byref(made))
        destroy, descriptor = self._calls[f"cudnnDestroy{kind}Descriptor"], made.value or 0
        self._closers.append(lambda: destroy(descriptor))
        return descriptor

    def _describe_network(self) -> int:
        net = self._network
        dropout = self._create("Dropout")  # layers with dropout run one by one, so there is none in here
        self._calls["cudnnSetDropoutDescriptor"](dropout, self._dnn.handle, 0.0, None, 0, 0)
        kind = cudnn.DATA[net.dtype]
        computing = cudnn.DATA[float64 if net.dtype is float64 else float32]
        math = _FMA_MATH if net.dtype is float32 and not net.tf32 else _DEFAULT_MATH
        bias = _DOUBLE_BIAS if net.biased else _NO_BIAS
        made = self._create("RNN")
        self._calls["cudnnSetRNNDescriptor_v8"](
            made, _algorithm(net), _MODES[net.mode], bias, int(net.bidirectional), 0, kind, computing, math,
            net.inputs, net.hidden, net.state, net.layers, dropout, 0,
        )  # fmt: skip
        return made

    def _describe_rows(self, width: int) -> int:
        net, made = self._network, self._create("RNNData")
        lengths = (c_int * net.batch)(*(net.lengths or (net.steps,) * net.batch))
        self._calls["cudnnSetRNNDataDescriptor"](
            made, cudnn.DATA[net.dtype], _PACKED_ROWS, net.steps, net.batch, width, lengths, None
        )
        return made

    def _describe_states(self, width: int) -> int:
        net, made = self._network, self._create("Tensor")
        sizes = (c_int * 3)(net.cells, net.batch, width)
        strides = (c_int * 3)(net.batch * width, width, 1)
        self._calls["cudnnSetTensorNdDescriptor"](made, cudnn.DATA[net.dtype], 3, sizes, strides)
        return made

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()

    # -- memory ---------------------------------------------------------------------------------------
    def _size(self, name: str) -> int:
        found = c_size_t()
        self._calls[name](self._dnn.handle, self._rnn, byref(found))
        return found.value

    def _temporary(self) -> tuple[int, int]:
        """Return the bytes of workspace and of the memory kept for the backward pass."""
        work, reserve = c_size_t(), c_size_t()
        mode = _TRAINING if self._network.training else _INFERENCE
        self._calls["cudnnGetRNNTempSpaceSizes"](
            self._dnn.handle, self._rnn, mode, self._x, byref(work), byref(reserve)
        )
        return work.value, reserve.value

    def memory(self) -> RecurrentMemory | None:
        """Return the memory that the caller provides. None if the gates of a parameter are not adjacent."""
        size, offsets = self._network.dtype.itemsize, []
        for cell in range(self._network.cells):
            for parts in self._parts(cell):
                nbytes = (parts[-1] - parts[0]) // max(len(parts) - 1, 1)
                if any(part != parts[0] + k * nbytes for k, part in enumerate(parts)) or parts[0] % size:
                    return None
                offsets.append(parts[0] // size)
        return RecurrentMemory(self.weights // size, tuple(offsets), self.reserve)

    def _parts(self, cell: int) -> Iterator[list[int]]:
        """Yield the offsets of the gates of each parameter of a layer and direction, in PyTorch's order."""
        net, gates = self._network, self._network.gates
        numbers = [range(gates), range(gates, 2 * gates)]
        for which in (0, 1)[: 1 + net.biased]:
            for each in numbers:
                yield [self._place(cell, number)[which] for number in each]
        if net.projection:
            yield [self._place(cell, _PROJECTION)[0]]

    def _place(self, cell: int, number: int) -> tuple[int, int]:
        """Return the offsets in bytes of a matrix and of its bias in the buffer of parameters."""
        if not hasattr(self, "_blanks"):
            self._blanks = [self._create("Tensor"), self._create("Tensor")]
        matrix, bias = c_void_p(), c_void_p()
        self._calls["cudnnGetRNNWeightParams"](
            self._dnn.handle, self._rnn, cell, self.weights, _BASE, number, self._blanks[0], byref(matrix),
            self._blanks[1], byref(bias),
        )  # fmt: skip
        return (matrix.value or _BASE) - _BASE, (bias.value or _BASE) - _BASE

    # -- launches -------------------------------------------------------------------------------------
    def forward(self, at: dict[str, int], native: Any) -> None:
        """Enqueue the forward pass.

        Args:
            at: Addresses of x, h, c, weights, work, and of the results y, hy, cy, reserve; missing ones are NULL.
            native: The stream.
        """
        x, y, h, hy, c, cy = (at.get(name) for name in ("x", "y", "h", "hy", "c", "cy"))
        mode = _TRAINING if self._network.training else _INFERENCE
        call = self._calls["cudnnRNNForward"]
        self._dnn.run(
            lambda: call(
                self._dnn.handle, self._rnn, mode, None, self._x, x, self._y, y, self._h, h, hy, self._c, c, cy,
                self.weights, at["weights"], *self._temporaries(at),
            ),
            native,
        )  # fmt: skip

    def backward(self, at: dict[str, int], native: Any) -> None:
        """Enqueue the backward pass of data and states, then that of weights if `at` has "dweights".

        Args:
            at: Addresses as in `forward`, and those of the gradients dy, dhy, dcy and of the results dx, dh, dc and
                dweights. The last one is zeroed.
            native: The stream.
        """
        names = ("y", "dy", "dx", "h", "dhy", "dh", "c", "dcy", "dc")
        y, dy, dx, h, dhy, dh, c, dcy, dc = (at.get(name) for name in names)
        temporaries = self._temporaries(at)
        data, weights = self._calls["cudnnRNNBackwardData_v8"], self._calls["cudnnRNNBackwardWeights_v8"]

        def issue() -> None:
            data(
                self._dnn.handle, self._rnn, None, self._y, y, dy, self._x, dx, self._h, h, dhy, dh, self._c, c,
                dcy, dc, self.weights, at["weights"], *temporaries,
            )  # fmt: skip
            if "dweights" in at:
                weights(
                    self._dnn.handle, self._rnn, _ADD, None, self._x, at["x"], self._h, h, self._y, y,
                    self.weights, at["dweights"], *temporaries,
                )  # fmt: skip

        self._dnn.run(issue, native)

    def _temporaries(self, at: dict[str, int]) -> Sequence[Any]:
        return self.work, at["work"], self.reserve, at.get("reserve")
