"""Recurrent networks as functions of the torch namespace: layers over sequences, and single cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from flambeau.core.dtype import promote_types
from flambeau.core.errors import RaceError
from flambeau.nn.functional.convolution import linear
from flambeau.nn.functional.recurrence import Layers, run_steps
from flambeau.nn.functional.recurrent_network import run_network
from flambeau.ops.autocast_rules import LOWER, LOWER_ON_CUDA
from flambeau.ops.nn import recurrent as ops
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import TensorList, explain_mismatch
from flambeau.tensor.arguments.public import function
from flambeau.tensor.call import call
from flambeau.tensor.functions.matmul import addmm
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

Given = Tensor | None
_SETTINGS = ("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
_PADDED = ("input", *_SETTINGS, "batch_first")
_PACKED = ("data", "batch_sizes", *_SETTINGS)


def _network(mode: str, name: str) -> Callable[..., tuple[Tensor, ...]]:
    def network(*args: Any, **named: Any) -> tuple[Tensor, ...]:
        packed = "batch_sizes" in named or (
            len(args) > 2 and isinstance(args[1], Tensor) and _holds(mode, args[2])
        )
        names = _PACKED if packed else _PADDED
        given = dict(zip(names, args, strict=False)) | named
        if len(args) + len(named) != len(names) or given.keys() != set(names):
            raise TypeError(f"{name}() takes ({', '.join(_PADDED)}) or ({', '.join(_PACKED)})")
        define = _run_packed if packed else _run_padded
        try:
            return define(mode, **given)
        except RaceError:
            raise
        except Exception as error:
            mistake = explain_mismatch(define, name, (mode,), given, method=False)
            if mistake is None:
                raise
            raise mistake from error

    signatures(
        shown=f"{name}(input: Tensor, hx: {'TensorList' if mode == 'LSTM' else 'Tensor'}, params: TensorList, "
        "has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool)"
    )
    network.__name__ = network.__qualname__ = name
    network.__doc__ = (
        f"Layers of {mode} over input (T, B, I) or packed data (N, I) with batch_sizes; `({', '.join(_PADDED)})` or "
        f"`({', '.join(_PACKED)})`. Gives the last layer's states and the last states of all layers."
    )
    return function(network)


def _holds(mode: str, x: Any) -> bool:
    """Return True if a third argument is hidden states: the second is `batch_sizes` then."""
    return mode == "LSTM" or isinstance(x, Tensor)


def _run_padded(
    mode: str, input: Tensor, hx: Any, params: TensorList, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    x = input.transpose(0, 1) if batch_first else input
    if x.dim() != 3:
        raise RuntimeError(f"Expected a 3-D input, got {list(input.shape)}")
    length, batch = x.shape[:2]
    if not length:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    rows = x.reshape(length * batch, x.shape[2])
    out, *last = _layers(
        mode, rows, [batch] * length, hx, params, has_biases, num_layers, dropout, train, bidirectional
    )
    out = out.view(length, batch, out.shape[1])
    return (out.transpose(0, 1) if batch_first else out, *last)


def _run_packed(
    mode: str, data: Tensor, batch_sizes: Tensor, hx: Any, params: TensorList, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _layers(
        mode, data, batch_sizes.tolist(), hx, params, has_biases, num_layers, dropout, train, bidirectional
    )


def _layers(
    mode: str, data: Tensor, sizes: list[int], hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run all layers. Each receives the outputs of the layer below, both directions side by side."""
    states = _states(mode, hx)
    if autocast.threads:
        rule = LOWER_ON_CUDA if mode == "GRU" else LOWER  # PyTorch composes RNNs of linear functions
        data, *tensors = autocast.cast(rule, data, *states, *params)
        states, params = tensors[: len(states)], tensors[len(states) :]
    directions = 2 if bidirectional else 1
    count = num_layers * directions
    if len(params) % count or states[0].shape[0] != count:
        raise RuntimeError(
            f"expected parameters and hidden states of {count} layers, got {len(params)} and {states[0].shape[0]}"
        )
    layers = Layers(mode, tuple(sizes), num_layers, directions, has_biases, dropout if train else 0.0)
    return run_network(layers, data, states, params) or run_steps(layers, data, states, params)


def _states(mode: str, hx: Any) -> Sequence[Tensor]:
    """Return the first states of all layers and directions, and the cell states of an LSTM."""
    if mode != "LSTM":
        return (hx,)
    if len(hx) != 2:
        raise RuntimeError("lstm expects two hidden states")
    return tuple(hx)


lstm = _network("LSTM", "lstm")
gru = _network("GRU", "gru")
rnn_tanh = _network("RNN_TANH", "rnn_tanh")
rnn_relu = _network("RNN_RELU", "rnn_relu")


# -- cells: their products are plain ones, as PyTorch's -----------------------------------------------------------


def _check_cell(input: Tensor, states: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, gates: int) -> None:
    if min(w_ih.ndim, w_hh.ndim, input.ndim, *[state.ndim for state in states]) < 2:
        raise RuntimeError(
            "expected an input, weights and states of two dimensions, got "
            f"{list(input.shape)}, {list(w_ih.shape)} and {list(w_hh.shape)}"
        )
    if input.shape[1] != w_ih.shape[1]:
        raise RuntimeError(
            f"input has inconsistent input_size: got {input.shape[1]} expected {w_ih.shape[1]}"
        )
    for i, x in enumerate(states):
        if x.shape[0] != input.shape[0]:
            raise RuntimeError(
                f"Input batch size {input.shape[0]} doesn't match hidden{i} batch size {x.shape[0]}"
            )
        if x.shape[1] != w_hh.shape[1]:
            raise RuntimeError(
                f"hidden{i} has inconsistent hidden_size: got {x.shape[1]}, expected {w_hh.shape[1]}"
            )
    rows = gates * w_hh.shape[1]
    if w_ih.shape[0] != rows:
        raise RuntimeError(
            f"weight_ih first dim must be {gates} * hidden_size = {rows}, but got {w_ih.shape[0]}"
        )


def _widest(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in their common dtype: of products that autocast lowered and states that it did not."""
    common = reduce(promote_types, [t.dtype for t in tensors])
    return [t if t.dtype is common else t.to(common) for t in tensors]


def _gates(input: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Given, b_hh: Given) -> Tensor:
    bias = b_ih if b_hh is None else b_hh if b_ih is None else b_ih + b_hh
    return addmm(linear(input, w_ih, bias), h, w_hh.t())


@function
def lstm_cell(
    input: Tensor, hx: TensorList, w_ih: Tensor, w_hh: Tensor, b_ih: Given = None, b_hh: Given = None
) -> tuple[Tensor, Tensor]:
    """Return (h, c) after one step of an LSTM from hx = (h, c), each (B, H), and input (B, I)."""
    if len(hx) != 2:
        raise RuntimeError("lstm_cell expects two hidden states")
    if autocast.threads:
        input, *hx, w_ih, w_hh, b_ih, b_hh = autocast.cast(LOWER_ON_CUDA, input, *hx, w_ih, w_hh, b_ih, b_hh)
    _check_cell(input, hx, w_ih, w_hh, 4)
    gates = _gates(input, hx[0], w_ih, w_hh, b_ih, b_hh)
    state: tuple[Tensor, Tensor] = call(ops.lstm_cell, _widest(gates, hx[1]))
    return state


@function
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Given = None, b_hh: Given = None
) -> Tensor:
    """Return the state after one step of a GRU from hx (B, H) and input (B, I)."""
    if autocast.threads:
        input, hx, w_ih, w_hh, b_ih, b_hh = autocast.cast(LOWER_ON_CUDA, input, hx, w_ih, w_hh, b_ih, b_hh)
    _check_cell(input, (hx,), w_ih, w_hh, 3)
    state: Tensor = call(ops.gru_cell, _widest(linear(input, w_ih, b_ih), linear(hx, w_hh, b_hh), hx))
    return state


@function
def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Given = None, b_hh: Given = None
) -> Tensor:
    """Return tanh of the input's and the state's products with the weights, plus biases."""
    if autocast.threads:
        input, hx, w_ih, w_hh, b_ih, b_hh = autocast.cast(LOWER_ON_CUDA, input, hx, w_ih, w_hh, b_ih, b_hh)
    _check_cell(input, (hx,), w_ih, w_hh, 1)
    return _gates(input, hx, w_ih, w_hh, b_ih, b_hh).tanh()


@function
def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Given = None, b_hh: Given = None
) -> Tensor:
    """Return relu of the input's and the state's products with the weights, plus biases."""
    if autocast.threads:
        input, hx, w_ih, w_hh, b_ih, b_hh = autocast.cast(LOWER_ON_CUDA, input, hx, w_ih, w_hh, b_ih, b_hh)
    _check_cell(input, (hx,), w_ih, w_hh, 1)
    return _gates(input, hx, w_ih, w_hh, b_ih, b_hh).relu()
