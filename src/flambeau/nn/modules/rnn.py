"""Recurrent networks and recurrent cells."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

from flambeau.nn import init
from flambeau.nn.functional import recurrent
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.nn.utils.rnn import PackedSequence
from flambeau.tensor import autocast
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_NETWORKS = {
    "LSTM": recurrent.lstm, "GRU": recurrent.gru, "RNN_TANH": recurrent.rnn_tanh, "RNN_RELU": recurrent.rnn_relu,
}  # fmt: skip


class RNNBase(Module):
    """The base of RNN, LSTM and GRU: parameters of all layers and directions, checks, and the run.

    Names end in `_l{layer}`, and `_reverse` for the way back in time: weight_ih (gates * H, input), weight_hh
    (gates * H, P), bias_ih and bias_hh (gates * H), and weight_hr (P, H) where states are projected (P is H if
    not). All start uniform in +-1 / sqrt(hidden_size).
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._check_settings(dropout)
        self._all_weights: list[list[str]] = []
        self._flat_weights_names: list[str] = []
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[: self._directions]:
                self._add_layer(layer, suffix, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def _check_settings(self, dropout: Any) -> None:
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= self.dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being zeroed"
            )
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={self.num_layers}",
                stacklevel=4,
            )
        for name, kind in (("bias", bool), ("batch_first", bool), ("input_size", int), ("hidden_size", int)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
        for name in ("input_size", "hidden_size", "num_layers"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if self.proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if self.proj_size >= self.hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if self.mode not in _GATES:
            raise ValueError("Unrecognized RNN mode: " + self.mode)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _state_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _add_layer(self, layer: int, suffix: str, made: dict[str, Any]) -> None:
        gates, size = _GATES[self.mode] * self.hidden_size, self._state_size
        taken = self._directions * size if layer else self.input_size
        shapes: dict[str, Any] = {"weight_ih": (gates, taken), "weight_hh": (gates, size)}
        if self.bias:
            shapes |= {"bias_ih": gates, "bias_hh": gates}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        names = [f"{name}_l{layer}{suffix}" for name in shapes]
        for name, shape in zip(names, shapes.values(), strict=True):
            setattr(self, name, Parameter(creation.empty(shape, **made)))
        self._all_weights.append(names)
        self._flat_weights_names += names

    @property
    def _flat_weights(self) -> list[Any]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Any]]:
        """Return the parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        _draw(self)

    def flatten_parameters(self) -> None:
        """Do nothing, because one kernel packs the parameters for cuDNN at each call, wherever they are."""

    # -- running ----------------------------------------------------------------------------------------

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise ValueError or RuntimeError where the input does not fit the parameters."""
        kind = self._flat_weights[0].dtype
        if input.dtype is not kind and not any(autocast.local.enabled.values()):
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({kind}). Convert input: "
                f"input.to({kind}), or convert model: model.to({input.dtype})"
            )
        wanted = 3 if batch_sizes is None else 2
        if input.dim() != wanted:
            raise RuntimeError(f"input must have {wanted} dimensions, got {input.dim()}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )

    def _batch(self, input: Tensor, batch_sizes: Tensor | None) -> int:
        if batch_sizes is not None:
            return int(batch_sizes[0])
        return input.shape[0 if self.batch_first else 1]

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """Return the shape of the hidden states."""
        return self.num_layers * self._directions, self._batch(input, batch_sizes), self._state_size

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: Any, msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """Raise RuntimeError where the states have another shape."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise RuntimeError if the input or the states do not fit the layers."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """Return the states of the sequences in another order."""
        return hx if permutation is None else hx.index_select(1, permutation)

    def _zeros(self, input: Tensor, batch: int) -> Any:
        return self._zero_state(input, batch, self._state_size)

    def _zero_state(self, input: Tensor, batch: int, size: int) -> Tensor:
        shape = (self.num_layers * self._directions, batch, size)
        return creation.zeros(shape, dtype=input.dtype, device=input.device)

    def _add_batch(self, hx: Any, batched: bool) -> Any:
        """Return states with a batch dimension. Raises RuntimeError if their dimensions do not match the input's."""
        dims = 3 if batched else 2
        if hx.dim() != dims:
            kind = "batched" if batched else "unbatched"
            raise RuntimeError(
                f"For {kind} {dims}-D input, hx should also be {dims}-D but got {hx.dim()}-D tensor"
            )
        return hx if batched else hx.unsqueeze(1)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Return (states of the last layer at all times, last states of all layers).

        Args:
            input: (T, I), (T, B, I), (B, T, I) with `batch_first`, or a PackedSequence.
            hx: Initial states (layers * directions, B, P); default: zeros.
        """
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        if input.dim() not in (2, 3):
            raise ValueError(self._refusal(input.dim()))
        batched, dim = input.dim() == 3, 0 if self.batch_first else 1
        x = input if batched else input.unsqueeze(dim)
        hx = self._zeros(x, self._batch(x, None)) if hx is None else self._add_batch(hx, batched)
        self.check_forward_args(x, hx, None)
        settings = (self.num_layers, self.dropout, self.training, self.bidirectional)
        out, *last = _NETWORKS[self.mode](x, hx, self._flat_weights, self.bias, *settings, self.batch_first)
        if not batched:
            out, last = out.squeeze(dim), [x.squeeze(1) for x in last]
        return out, self._pack_states(last)

    def _refusal(self, dims: int) -> str:
        tensor = " tensor" if self.mode.startswith("RNN") else ""
        return f"{type(self).__name__}: Expected input to be 2D or 3D, got {dims}D{tensor} instead"

    def _run_packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        data, sizes, forth, back = packed
        hx = self._zeros(data, int(sizes[0])) if hx is None else self.permute_hidden(hx, forth)
        self.check_forward_args(data, hx, sizes)
        settings = (self.num_layers, self.dropout, self.training, self.bidirectional)
        out, *last = _NETWORKS[self.mode](data, sizes, hx, self._flat_weights, self.bias, *settings)
        return PackedSequence(out, sizes, forth, back), self.permute_hidden(self._pack_states(last), back)

    def _pack_states(self, last: list[Tensor]) -> Any:
        return last[0]

    # -- text and state ---------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        plain = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False,
        }  # fmt: skip
        more = [
            f"{name}={getattr(self, name)}" for name, usual in plain.items() if getattr(self, name) != usual
        ]
        return ", ".join([str(self.input_size), str(self.hidden_size), *more])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_flat_weights": self._flat_weights}  # which PyTorch's needs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(
            {k: v for k, v in state.items() if k not in ("_flat_weights", "_flat_weight_refs")}
        )


def _draw(module: Any) -> None:
    bound = 1.0 / math.sqrt(module.hidden_size) if module.hidden_size > 0 else 0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


def _refuse_projection(named: dict[str, Any]) -> None:
    if "proj_size" in named:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


class RNN(RNNBase):
    """A recurrent network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu instead of tanh.

    Args: input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
    bidirectional=False.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_projection(kwargs)
        nonlinearity = args[3] if len(args) > 3 else kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(f"RNN_{nonlinearity.upper()}", *args[:3], *args[4:], **kwargs)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """A long short-term memory: i, f, g, o = gates of x and h; c' = f c + i g; h' = o tanh(c'), projected by weight_hr.

    Args: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
    proj_size=0. Its states are a pair (h, c).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """Return the shape of the cell states."""
        return self.num_layers * self._directions, self._batch(input, batch_sizes), self.hidden_size

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        self.check_input(input, batch_sizes)
        wanted = (self.get_expected_hidden_size, self.get_expected_cell_size)
        for i, size in enumerate(wanted):
            said = f"Expected hidden[{i}] size {{}}, got {{}}"
            self.check_hidden_size(hidden[i], size(input, batch_sizes), said)

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        return hx if permutation is None else tuple([x.index_select(1, permutation) for x in hx])

    def _zeros(self, input: Tensor, batch: int) -> Any:
        return tuple([self._zero_state(input, batch, n) for n in (self._state_size, self.hidden_size)])

    def _add_batch(self, hx: Any, batched: bool) -> Any:
        dims = 3 if batched else 2
        if hx[0].dim() != dims or hx[1].dim() != dims:
            kind = "batched" if batched else "unbatched"
            raise RuntimeError(
                f"For {kind} {dims}-D input, hx and cx should also be {dims}-D but got "
                f"({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
            )
        return hx if batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))

    def _pack_states(self, last: list[Tensor]) -> Any:
        return tuple(last)


class GRU(RNNBase):
    """A gated recurrent unit: r, z = gates of x and h; n = tanh(W x + b + r (W h + b)); h' = (1 - z) n + z h.

    Args: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_projection(kwargs)
        super().__init__("GRU", *args, **kwargs)


# -- cells ----------------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """The base of the cells: parameters weight_ih, weight_hh, bias_ih, bias_hh of all gates."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        made, gates = {"device": device, "dtype": dtype}, num_chunks * hidden_size
        self.weight_ih = Parameter(creation.empty((gates, input_size), **made))
        self.weight_hh = Parameter(creation.empty((gates, hidden_size), **made))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(creation.empty(gates, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        _draw(self)

    def extra_repr(self) -> str:
        said = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            said += f", bias={self.bias}"
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return said if nonlinearity == "tanh" else f"{said}, nonlinearity={nonlinearity}"

    def _weights(self) -> tuple[Any, ...]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def _check(self, x: Tensor, what: str) -> None:
        if x.dim() not in (1, 2):
            raise ValueError(f"{type(self).__name__}: Expected {what} to be 1D or 2D, got {x.dim()}D instead")

    def _state(self, input: Tensor, hx: Tensor | None, what: str) -> tuple[Tensor, Tensor, bool]:
        """Return input and state with a batch dimension, and False if it was added."""
        self._check(input, "input")
        if hx is not None:
            self._check(hx, what)
        batched = input.dim() == 2
        if not batched:
            input = input.unsqueeze(0)
        if hx is None:
            hx = creation.zeros(input.shape[0], self.hidden_size, dtype=input.dtype, device=input.device)
        elif not batched:
            hx = hx.unsqueeze(0)
        return input, hx, batched


class RNNCell(RNNCellBase):
    """One step of an RNN: input (B, I) or (I), state (B, H) or (H), default zeros."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        input, hx, batched = self._state(input, hx, "hidden")
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        step = recurrent.rnn_tanh_cell if self.nonlinearity == "tanh" else recurrent.rnn_relu_cell
        state = step(input, hx, *self._weights())
        return state if batched else state.squeeze(0)


class LSTMCell(RNNCellBase):
    """One step of an LSTM: input (B, I) or (I), states (h, c) of (B, H) or (H), default zeros."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        x, h, batched = self._state(input, None if hx is None else hx[0], "hx[0]")
        c = h if hx is None else self._state(input, hx[1], "hx[1]")[1]
        states = recurrent.lstm_cell(x, (h, c), *self._weights())
        return states if batched else (states[0].squeeze(0), states[1].squeeze(0))


class GRUCell(RNNCellBase):
    """One step of a GRU: input (B, I) or (I), state (B, H) or (H), default zeros."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        input, hx, batched = self._state(input, hx, "hidden")
        state = recurrent.gru_cell(input, hx, *self._weights())
        return state if batched else state.squeeze(0)
