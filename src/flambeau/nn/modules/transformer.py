"""Transformers: encoders and decoders of attention and feed-forward layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from flambeau.nn import functional as F
from flambeau.nn import init
from flambeau.nn.functional.attention import canonical_mask
from flambeau.nn.modules.activation import GELU, MultiheadAttention, ReLU
from flambeau.nn.modules.container import ModuleList
from flambeau.nn.modules.dropout import Dropout
from flambeau.nn.modules.linear import Linear
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.normalization import LayerNorm
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

Given = Tensor | None
Activation = str | Callable[[Tensor], Tensor]


def _function(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    found: Callable[[Tensor], Tensor] = getattr(F, activation)
    return found


def _clones(module: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


class _Layer(Module):
    """The base of encoder and decoder layers: feed-forward part, normalization, dropout."""

    norms: int

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        made = {"device": device, "dtype": dtype}
        super().__init__()
        for name in ("self_attn", "multihead_attn")[: self.norms - 1]:
            attention = MultiheadAttention(
                d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **made
            )
            setattr(self, name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = norm_first
        numbers = range(1, self.norms + 1)
        for i in numbers:
            setattr(self, f"norm{i}", LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made))
        for i in numbers:
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _function(activation)
        if self.norms == 2:  # checkpoints of PyTorch's encoders contain this weight
            is_relu = self.activation is F.relu or isinstance(self.activation, ReLU)
            is_gelu = self.activation is F.gelu or isinstance(self.activation, GELU)
            self.activation_relu_or_gelu = 1 if is_relu else 2 if is_gelu else 0

    def _around(self, x: Tensor, norm: Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x plus the result of `part`, with the normalization before the part or after the sum."""
        result: Tensor = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return result

    def _sa_block(
        self, x: Tensor, attn_mask: Given, key_padding_mask: Given, is_causal: bool = False
    ) -> Tensor:
        return self._attend(self.self_attn, x, x, attn_mask, key_padding_mask, is_causal, self.dropout1)

    @staticmethod
    def _attend(
        attention: Module, x: Tensor, memory: Tensor, mask: Given, padding: Given, causal: bool, drop: Module
    ) -> Tensor:
        out, _ = attention(
            x, memory, memory, attn_mask=mask, key_padding_mask=padding, is_causal=causal, need_weights=False
        )
        result: Tensor = drop(out)
        return result

    def _ff_block(self, x: Tensor) -> Tensor:
        last = getattr(self, f"dropout{self.norms}")
        result: Tensor = last(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return result


class TransformerEncoderLayer(_Layer):
    """A layer of self-attention and a feed-forward network, each added to its input and normalized.

    Sources have the shape (S, N, d_model), or (N, S, d_model) with `batch_first`. `activation` is "relu", "gelu" or a
    function. `norm_first` normalizes before the two parts instead of after them.
    """

    norms = 2

    def forward(
        self, src: Tensor, src_mask: Given = None, src_key_padding_mask: Given = None, is_causal: bool = False
    ) -> Tensor:
        """Run the layer.

        Args:
            src_mask: (S, S) or (N * heads, S, S); bool (True excludes a position), or a tensor that is added.
            src_key_padding_mask: (N, S), of the same kinds.
        """
        padding = canonical_mask(
            src_key_padding_mask, "src_key_padding_mask", src_mask, "src_mask", src.dtype
        )
        mask = canonical_mask(src_mask, "src_mask", None, "", src.dtype)
        x = self._around(src, self.norm1, lambda x: self._sa_block(x, mask, padding, is_causal))
        return self._around(x, self.norm2, self._ff_block)


class TransformerDecoderLayer(_Layer):
    """A layer of self-attention, attention to the encoder's memory, and a feed-forward network.

    See `TransformerEncoderLayer` for the parameters.
    """

    norms = 3

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Given = None, memory_mask: Given = None,
        tgt_key_padding_mask: Given = None, memory_key_padding_mask: Given = None, tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Run the layer. Masks of the target and of the memory have the forms of `TransformerEncoderLayer.forward`."""
        x = self._around(
            tgt, self.norm1, lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        )
        x = self._around(
            x,
            self.norm2,
            lambda x: self._mha_block(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal),
        )
        return self._around(x, self.norm3, self._ff_block)

    def _mha_block(
        self, x: Tensor, mem: Tensor, attn_mask: Given, key_padding_mask: Given, is_causal: bool = False
    ) -> Tensor:
        return self._attend(
            self.multihead_attn, x, mem, attn_mask, key_padding_mask, is_causal, self.dropout2
        )


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, followed by `norm` if it is not None.

    Flambeau has no nested tensors: `enable_nested_tensor` and `mask_check` have no effect.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.use_nested_tensor = False
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Given = None,
        src_key_padding_mask: Given = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Run the layers. `is_causal` means that `mask` is the causal mask; for None, PyTorch compares it and waits for
        the GPU.
        """
        padding = canonical_mask(src_key_padding_mask, "src_key_padding_mask", mask, "mask", src.dtype)
        mask = canonical_mask(mask, "mask", None, "", src.dtype)
        out = src
        for layer in self.layers:
            out = layer(out, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=padding)
        return out if self.norm is None else self.norm(out)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer, followed by `norm` if it is not None."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Given = None, memory_mask: Given = None,
        tgt_key_padding_mask: Given = None, memory_key_padding_mask: Given = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Run the layers. Every layer gets the masks of the target and of the memory."""
        out = tgt
        for layer in self.layers:
            out = layer(
                out, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return out if self.norm is None else self.norm(out)


class Transformer(Module):
    """An encoder, and a decoder that attends to the encoder's output. All weights are initialized by xavier_uniform_.

    Inputs are src (S, N, d_model) and tgt (T, N, d_model), or with the batch first if `batch_first`; the output has the
    shape of tgt.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = F.relu,
        custom_encoder: Any = None, custom_decoder: Any = None, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        made = {"device": device, "dtype": dtype}
        settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
        )  # fmt: skip
        for name, custom, layer, stack, count in (
            ("encoder", custom_encoder, TransformerEncoderLayer, TransformerEncoder, num_encoder_layers),
            ("decoder", custom_decoder, TransformerDecoderLayer, TransformerDecoder, num_decoder_layers),
        ):
            part = custom
            if part is None:
                one = layer(*settings, **made)
                part = stack(one, count, LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made))
            setattr(self, name, part)
        for weight in self.parameters():
            if weight.dim() > 1:
                init.xavier_uniform_(weight)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Given = None, tgt_mask: Given = None, memory_mask: Given = None,
        src_key_padding_mask: Given = None, tgt_key_padding_mask: Given = None,
        memory_key_padding_mask: Given = None, src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Run the encoder and the decoder.

        Raises:
            RuntimeError: If batches differ, or the number of features is not d_model.
        """
        batch = 0 if self.batch_first else 1
        if src.dim() == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        out: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return the causal mask (sz, sz): -inf above the diagonal, else 0."""
        return creation.full((sz, sz), -math.inf, dtype=dtype, device=device).triu(1)
