"""The table of modules: how each is made and what it is given. Every generated test of tests/nn runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from support import from_torch, torch

import flambeau


def draw(*shape: int, seed: int = 0, low: float = -2, high: float = 2) -> Any:
    """Seeded uniform numbers, float32."""
    values = np.random.default_rng(seed + sum(shape)).uniform(low, high, shape)
    return torch.from_numpy(np.asarray(values)).to(torch.float32)


def whole(*shape: int, count: int, seed: int = 0, low: int = 0) -> Any:
    """Seeded integers."""
    return torch.from_numpy(np.random.default_rng(seed).integers(low, count, shape))


def signs(*shape: int, seed: int = 0) -> Any:
    return whole(*shape, count=2, seed=seed) * 2.0 - 1


@dataclass(frozen=True)
class Case:
    """One module and its inputs.

    make: `(torch.nn or flambeau.nn, carry)` to the module; `carry` brings a PyTorch tensor to that side.
    inputs: PyTorch tensors and other values.
    ulps, atol: how far results may be from PyTorch's: in units in the last place, or absolutely.
    gradients: whether PyTorch differentiates the module; gradient_atol: how far gradients may be.
    constant: the inputs by which it does not.
    """

    name: str
    make: Callable[[Any, Callable[[Any], Any]], Any]
    inputs: tuple[Any, ...]
    atol: float = 2e-6
    gradients: bool = True
    gradient_atol: float = 2e-5
    constant: tuple[int, ...] = ()


def carried(room: Any) -> Callable[[Any], Any]:
    """What brings a PyTorch value to `torch` or to `flambeau`."""

    def carry(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return from_torch(x) if room is flambeau else x.clone()
        return x

    return carry


def flat(x: Any) -> list[Any]:
    """The tensors of nested tuples."""
    if isinstance(x, tuple):
        return [t for part in x for t in flat(part)]
    return [] if x is None else [x]


CASES: list[Case] = []


def add(name: str, inputs: Any, *args: Any, label: str = "", **more: Any) -> None:
    """A module of this name made with these arguments; `case_...` arguments are the case's own."""
    own = {k[5:]: v for k, v in more.items() if k.startswith("case_")}
    named = {k: v for k, v in more.items() if not k.startswith("case_")}

    def make(nn: Any, carry: Any) -> Any:
        return getattr(nn, name)(*[carry(a) for a in args], **{k: carry(v) for k, v in named.items()})

    text = ",".join([*[_short(a) for a in args], *[f"{k}={_short(v)}" for k, v in named.items()]])
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    CASES.append(Case(f"{name}({text}){label}", make, given, **own))


def _short(x: Any) -> str:
    return f"<{'x'.join(map(str, x.shape))}>" if isinstance(x, torch.Tensor) else str(x).replace(" ", "")


X2, X3, X4, X5 = draw(4, 6), draw(2, 4, 9), draw(2, 4, 8, 7), draw(2, 4, 5, 6, 5)

# -- linear ---------------------------------------------------------------------------------------------
add("Identity", X2)
add("Identity", X2, 54, unused=0.1)
add("Linear", X2, 6, 3)
add("Linear", draw(2, 3, 6), 6, 3, bias=False)
add("Bilinear", (X2, draw(4, 5)), 6, 5, 3)
add("Bilinear", (draw(2, 3, 6), draw(2, 3, 5)), 6, 5, 3, bias=False)
add("LazyLinear", X2, 3)

# -- convolutions ---------------------------------------------------------------------------------------
for _n, _x in ((1, X3), (2, X4), (3, X5)):
    _conv, _back = f"Conv{_n}d", f"ConvTranspose{_n}d"
    add(_conv, _x, 4, 6, 3, case_atol=1e-5, case_gradient_atol=1e-4)
    add(_conv, _x[0], 4, 6, 3, stride=2, padding=1, bias=False, case_atol=1e-5, case_gradient_atol=1e-4)
    add(_conv, _x, 4, 6, 2, dilation=2, groups=2, case_atol=1e-5, case_gradient_atol=1e-4)
    add(_conv, _x, 4, 2, (2, 3, 2)[:_n], padding="same", case_atol=1e-5, case_gradient_atol=1e-4)
    add(_conv, _x, 4, 2, 2, padding="valid", case_atol=1e-5, case_gradient_atol=1e-4)
    for _mode in ("reflect", "replicate", "circular"):
        add(
            _conv,
            _x,
            4,
            2,
            3,
            padding=(1, 2, 1)[:_n],
            padding_mode=_mode,
            case_atol=1e-5,
            case_gradient_atol=1e-4,
        )
    add(_conv, _x, 4, 2, 3, padding="same", padding_mode="reflect", case_atol=1e-5, case_gradient_atol=1e-4)
    add(_back, _x, 4, 6, 3, case_atol=1e-5, case_gradient_atol=1e-4)
    add(
        _back,
        _x,
        4,
        6,
        3,
        stride=2,
        padding=1,
        output_padding=1,
        groups=2,
        bias=False,
        case_atol=1e-5,
        case_gradient_atol=1e-4,
    )
    add(_back, _x[0], 4, 6, 2, dilation=2, case_atol=1e-5, case_gradient_atol=1e-4)
    add(f"LazyConv{_n}d", _x, 6, 3, groups=2, case_atol=1e-5, case_gradient_atol=1e-4)
    add(f"LazyConvTranspose{_n}d", _x, 6, 3, groups=2, case_atol=1e-5, case_gradient_atol=1e-4)
_sizes = {1: [13], 2: [2, 4, 11, 12], 3: [12, 14, 12]}
for _n, _x in ((1, draw(2, 4, 6)), (2, draw(2, 4, 5, 5)), (3, draw(2, 4, 5, 6, 5))):
    add(
        f"ConvTranspose{_n}d",
        (_x, _sizes[_n]),
        4,
        2,
        3,
        stride=2,
        label="-to-size",
        case_atol=1e-5,
        case_gradient_atol=1e-4,
    )

# -- padding --------------------------------------------------------------------------------------------
for _n, _x in ((1, X3), (2, X4), (3, X5)):
    for _mode in ("Circular", "Reflection", "Replication", "Zero"):
        add(f"{_mode}Pad{_n}d", _x, 2)
        add(f"{_mode}Pad{_n}d", _x[0], (1, 2, 0, 1, 2, 0)[: 2 * _n])
    add(f"ConstantPad{_n}d", _x, 2, 3.5)
    add(f"ConstantPad{_n}d", _x, (1, -1, 2, 0, -1, 1)[: 2 * _n], -1)

# -- pooling --------------------------------------------------------------------------------------------
for _n, _x in ((1, X3), (2, X4), (3, X5)):
    add(f"MaxPool{_n}d", _x, 2)
    add(f"MaxPool{_n}d", _x[0], 3, stride=2, padding=1, ceil_mode=True)
    add(f"MaxPool{_n}d", _x, 2, dilation=2, stride=1, return_indices=True)
    add(f"AvgPool{_n}d", _x, 2)
    add(f"AvgPool{_n}d", _x, (3, 2, 3)[:_n], stride=2, padding=1, ceil_mode=True, count_include_pad=False)
    add(f"LPPool{_n}d", _x.abs(), 2, 2, case_atol=1e-5)
    add(f"LPPool{_n}d", _x.abs(), 3, 2, stride=1, ceil_mode=True, case_atol=1e-5)
    add(f"AdaptiveAvgPool{_n}d", _x, 3)
    add(f"AdaptiveMaxPool{_n}d", _x, (2, 3, 2)[:_n])
    add(f"AdaptiveMaxPool{_n}d", _x, 2, return_indices=True)
    _pool = getattr(torch.nn.functional, f"max_pool{_n}d")
    _x = _x[(slice(None), slice(None), *(slice(0, 4),) * _n)]
    _top, _where = _pool(_x, 2, return_indices=True)
    add(f"MaxUnpool{_n}d", (_top, _where), 2)
    add(f"MaxUnpool{_n}d", (_top, _where, list(_x.shape)), 2, label="-to-size")
add("AvgPool2d", X4, 2, divisor_override=3)
add("AdaptiveAvgPool2d", X4, (None, 2))
for _n, _x in ((2, X4), (3, X5)):
    _drawn = draw(2, 4, _n, low=0, high=1)
    add(f"FractionalMaxPool{_n}d", _x, 2, output_size=3, _random_samples=_drawn)
    add(f"FractionalMaxPool{_n}d", _x, 2, output_ratio=0.5, return_indices=True)

# -- normalization --------------------------------------------------------------------------------------
for _n, _x in ((1, X3), (2, X4), (3, X5)):
    add(f"BatchNorm{_n}d", _x, 4, case_gradient_atol=1e-4)
    add(f"BatchNorm{_n}d", _x, 4, momentum=None, case_gradient_atol=1e-4)
    add(f"BatchNorm{_n}d", _x, 4, eps=1e-3, affine=False, track_running_stats=False, case_gradient_atol=1e-4)
    add(f"BatchNorm{_n}d", _x, 4, bias=False, case_gradient_atol=1e-4)
    add(f"LazyBatchNorm{_n}d", _x, case_gradient_atol=1e-4)
    add(f"InstanceNorm{_n}d", _x, 4, case_gradient_atol=1e-4)
    add(f"InstanceNorm{_n}d", _x, 4, affine=True, track_running_stats=True, case_gradient_atol=1e-4)
    add(f"InstanceNorm{_n}d", _x[0], 4, affine=True, momentum=0.3, case_gradient_atol=1e-4)
    add(f"LazyInstanceNorm{_n}d", _x, case_gradient_atol=1e-4)
add("BatchNorm1d", X2, 6, case_gradient_atol=1e-4)
add("LayerNorm", X2, 6, case_gradient_atol=1e-4)
add("LayerNorm", X4, (8, 7), elementwise_affine=False, case_gradient_atol=1e-4)
add("LayerNorm", X3, [4, 9], bias=False, eps=1e-3, case_gradient_atol=1e-4)
add("RMSNorm", X2, 6, case_gradient_atol=1e-4)
add("RMSNorm", X3, (4, 9), eps=1e-3, elementwise_affine=False, case_gradient_atol=1e-4)
add("GroupNorm", X4, 2, 4, case_gradient_atol=1e-4)
add("GroupNorm", X3, 4, 4, affine=False, case_gradient_atol=1e-4)
add("GroupNorm", X5, 1, 4, bias=False, case_gradient_atol=1e-4)
add("LocalResponseNorm", X4, 2)
add("LocalResponseNorm", X3, 3, alpha=0.1, beta=0.5, k=2.0)
add("CrossMapLRN2d", X4, 3, alpha=0.1, case_gradients=False)  # PyTorch's is not that of its result
add("CrossMapLRN2d", X4, 2, k=2, case_gradients=False)

# -- activations ----------------------------------------------------------------------------------------
for _name in (
    "ReLU", "ReLU6", "SiLU", "Mish", "Hardswish", "Hardsigmoid", "SELU", "Sigmoid", "Tanh", "LogSigmoid", "Softsign",
    "Tanhshrink", "ELU", "CELU", "GELU", "GLU", "Hardshrink", "Hardtanh", "LeakyReLU", "Softplus", "Softshrink",
    "PReLU", "RReLU",
):  # fmt: skip
    add(_name, draw(3, 4, low=-4, high=4))
for _name in (
    "ReLU", "ReLU6", "SiLU", "Mish", "Hardswish", "Hardsigmoid", "SELU", "ELU", "CELU", "Hardtanh", "LeakyReLU", "RReLU",
):  # fmt: skip
    add(_name, draw(3, 4, low=-4, high=4), inplace=True)
add("ELU", X2, 0.5)
add("CELU", X2, alpha=0.5)
add("GELU", X2, "tanh")
add("GLU", X4, dim=1)
add("Hardshrink", X2, 1.0)
add("Hardtanh", X2, -0.5, 0.25)
add("LeakyReLU", X2, 0.3)
add("Softplus", X2, beta=2.0, threshold=1.0)
add("Softshrink", X2, 0.25)
add("PReLU", X4, num_parameters=4, init=0.1)
add("RReLU", X2, 0.1, 0.4)
add("Threshold", X2, 0.1, 20)
add("Threshold", X2, 0.1, 20, inplace=True)
add("Softmax", X3, dim=1)
add("Softmin", X3, dim=-1)
add("LogSoftmax", X3, dim=1)
add("Softmax2d", X4)
add("Softmax2d", X4[0])

# -- dropout --------------------------------------------------------------------------------------------
for _name, _x in (
    ("Dropout", X2), ("Dropout1d", X3), ("Dropout2d", X4), ("Dropout3d", X5), ("AlphaDropout", X2),
    ("FeatureAlphaDropout", X4),
):  # fmt: skip
    add(_name, _x)
    add(_name, _x, p=0.2, inplace=True)

# -- tables ---------------------------------------------------------------------------------------------
add("Embedding", whole(3, 5, count=7), 7, 4)
add("Embedding", whole(3, 5, count=7), 7, 4, padding_idx=-1)
add("Embedding", whole(9, count=7), 7, 4, scale_grad_by_freq=True)
add("Embedding", whole(9, count=7), 7, 4, max_norm=1.0, norm_type=1.0)
for _mode in ("sum", "mean", "max"):
    add("EmbeddingBag", whole(3, 5, count=7), 7, 4, mode=_mode)
    add("EmbeddingBag", (whole(9, count=7), torch.tensor([0, 2, 2, 6])), 7, 4, mode=_mode, label="-offsets")
add("EmbeddingBag", (whole(3, 5, count=7), None, draw(3, 5)), 7, 4, mode="sum", label="-weighted")
add(
    "EmbeddingBag",
    (whole(9, count=7), torch.tensor([0, 4, 9])),
    7,
    4,
    include_last_offset=True,
    padding_idx=2,
)
add("EmbeddingBag", whole(3, 5, count=7), 7, 4, max_norm=1.0)

# -- recurrent ------------------------------------------------------------------------------------------
for _name in ("RNN", "LSTM", "GRU"):
    add(_name, draw(5, 3, 4), 4, 6)
    add(_name, draw(3, 5, 4), 4, 6, num_layers=2, bidirectional=True, batch_first=True)
    add(_name, draw(5, 4), 4, 3, num_layers=3, bias=False)
    add(_name, draw(5, 3, 4), 4, 3, num_layers=2, dropout=0.4)
    add(f"{_name}Cell", draw(3, 4), 4, 6)
    add(f"{_name}Cell", draw(4), 4, 6, bias=False)
add("RNN", draw(5, 3, 4), 4, 6, 1, "relu")
add("RNN", draw(5, 3, 4), 4, 6, nonlinearity="relu", batch_first=True)
add("RNNCell", draw(3, 4), 4, 6, nonlinearity="relu")
add("LSTM", draw(5, 3, 4), 4, 6, num_layers=2, bidirectional=True, proj_size=2)
add("LSTM", draw(5, 3, 4), 4, 6, bias=False, proj_size=3)

# -- attention ------------------------------------------------------------------------------------------
_q, _k, _v = draw(5, 2, 8), draw(4, 2, 8, seed=1), draw(4, 2, 8, seed=2)
_hidden = torch.tensor([[False, False, True, False], [False, True, True, False]])
_upper = torch.ones(5, 4).triu(2)
add("MultiheadAttention", (_q, _k, _v), 8, 2)
add("MultiheadAttention", (_q[:, 0], _k[:, 0], _v[:, 0]), 8, 4, bias=False)
add("MultiheadAttention", (_q, _k, _v, None, False), 8, 2, dropout=0.3)
add("MultiheadAttention", (_q, _k, _v, None, True, None, False), 8, 2, dropout=0.3)
add("MultiheadAttention", (_q, _k, _v, _hidden), 8, 2, add_bias_kv=True, add_zero_attn=True)
add(
    "MultiheadAttention", (_q, _k, _v, _hidden, False, _upper > 0), 8, 2, add_bias_kv=True, add_zero_attn=True
)
add("MultiheadAttention", (_q, _k, _v, None, False, _upper), 8, 2, batch_first=False, label="-floating")
add("MultiheadAttention", (_q, _k, _v, None, True, draw(4, 5, 4)), 8, 2, label="-per-head")
add("MultiheadAttention", (_q, _k, _v, None, False, draw(4, 5, 4) > 1), 8, 2, label="-per-head-bool")
add(
    "MultiheadAttention",
    (draw(2, 5, 8), draw(2, 4, 3), draw(2, 4, 6), _hidden),
    8,
    2,
    kdim=3,
    vdim=6,
    batch_first=True,
)
add(
    "MultiheadAttention",
    (_q, _q * 2, _q, None, False, torch.ones(5, 5).triu(1) > 0, True, True),
    8,
    2,
    label="-causal",
)
_source, _target = draw(5, 2, 8), draw(4, 2, 8, seed=1)
_padding = torch.tensor([[False, False, False, True, True], [False] * 5])
_causal = torch.ones(5, 5).triu(1) > 0
for _options in ({}, {"norm_first": True, "activation": "gelu"}, {"bias": False}):
    _near = {"case_gradient_atol": 1e-4, "case_atol": 1e-5, "dropout": 0.0}
    add("TransformerEncoderLayer", (_source, _causal, _padding), 8, 2, 16, **_near, **_options)
    add(
        "TransformerDecoderLayer",
        (_target, _source, None, None, None, _padding),
        8,
        2,
        16,
        **_near,
        **_options,
    )
add("TransformerEncoderLayer", _source, 8, 2, 16, label="-dropout", case_gradient_atol=1e-4, case_atol=1e-5)
add(
    "TransformerDecoderLayer",
    (_target, _source),
    8,
    2,
    16,
    0.3,
    case_gradient_atol=1e-4,
    case_atol=1e-5,
    label="-dropout",
)
add(
    "TransformerEncoderLayer",
    _source[:, 0],
    8,
    2,
    16,
    0.0,
    batch_first=True,
    case_gradient_atol=1e-4,
    case_atol=1e-5,
)
add(
    "Transformer", (_source, _target, None, _causal[:4, :4], None, _padding), 8, 2, 2, 2, 16, 0.0, batch_first=False,
    case_gradient_atol=2e-4, case_atol=2e-5,
)  # fmt: skip


def _encoder(nn: Any, carry: Any) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    return nn.TransformerEncoder(layer, 3, nn.LayerNorm(8), enable_nested_tensor=False)


def _decoder(nn: Any, carry: Any) -> Any:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=True), 2)


CASES.append(Case("TransformerEncoder()", _encoder, (_source, _causal, _padding), 2e-5, gradient_atol=2e-4))
CASES.append(
    Case("TransformerDecoder()", _decoder, (_target, _source, _causal[:4, :4]), 2e-5, gradient_atol=2e-4)
)
add("AdaptiveLogSoftmaxWithLoss", (draw(9, 16), whole(9, count=20)), 16, 20, [5, 10, 15], div_value=2.0)
add(
    "AdaptiveLogSoftmaxWithLoss",
    (draw(16), torch.tensor(11)),
    16,
    20,
    [5, 10],
    head_bias=True,
    label="-unbatched",
)

# -- shapes ---------------------------------------------------------------------------------------------
add("Flatten", X4)
add("Flatten", X4, 0, 2)
add("Unflatten", X2, 1, (2, 3))
add("Unflatten", X4, -3, [2, 2])
add("Unfold", X4, (2, 3), stride=2, padding=1)
add("Fold", draw(2, 12, 12), (4, 5), (2, 2), label="-2x2")
add("Fold", draw(2, 3 * 6, 20), (8, 7), (2, 3), stride=2, padding=1)
add("PixelShuffle", X4, 2)
add("PixelUnshuffle", draw(2, 3, 4, 6), 2)
add("ChannelShuffle", X4, 2)
add("Upsample", X4, scale_factor=2)
add("Upsample", X3, size=5, mode="linear")
add("Upsample", X4, scale_factor=(2, 1.5), mode="bilinear", align_corners=True)
add("Upsample", X4, size=(5, 11), mode="bicubic", case_atol=1e-5)
add("Upsample", X5, scale_factor=1.5, mode="trilinear", recompute_scale_factor=True)
add("UpsamplingNearest2d", X4, scale_factor=2)
add("UpsamplingBilinear2d", X4, size=(5, 11))
add("CosineSimilarity", (X3, draw(2, 4, 9, seed=1)))
add("CosineSimilarity", (X3, draw(2, 4, 9, seed=1)), dim=-1, eps=1e-3)
add("PairwiseDistance", (X2, draw(4, 6, seed=1)))
add("PairwiseDistance", (X2, draw(4, 6, seed=1)), p=1, keepdim=True)

# -- losses ---------------------------------------------------------------------------------------------
_y, _p = draw(4, 6, seed=1), draw(4, 6, seed=2, low=0.05, high=0.95)
_classes, _maps = whole(4, count=6), whole(2, 8, 7, count=4)
_log = torch.log_softmax(X2, 1)
_weight = draw(6, seed=3, low=0.5, high=2)
for _how in ("none", "mean", "sum"):
    add("L1Loss", (X2, _y), reduction=_how)
    add("MSELoss", (X2, _y), reduction=_how)
    add("SmoothL1Loss", (X2, _y), reduction=_how, beta=0.5)
    add("HuberLoss", (X2, _y), reduction=_how, delta=0.7)
    add("PoissonNLLLoss", (X2, _p * 5), reduction=_how)
    add("GaussianNLLLoss", (X2, _y, _p), reduction=_how)
    add("KLDivLoss", (_log, _p), reduction=_how)
    add("NLLLoss", (_log, _classes), reduction=_how)
    add("CrossEntropyLoss", (X2, _classes), reduction=_how)
    add("CrossEntropyLoss", (X2, _p), reduction=_how, label="-probabilities")
    add("BCELoss", (_p, draw(4, 6, low=0, high=1)), reduction=_how)
    add("BCEWithLogitsLoss", (X2, _p), reduction=_how)
    add("HingeEmbeddingLoss", (X2, signs(4, 6)), reduction=_how, margin=0.5)
    add("MultiLabelMarginLoss", (X2, torch.tensor([[3, 0, -1, 1, 2, 2]] * 4)), reduction=_how)
    add("SoftMarginLoss", (X2, signs(4, 6)), reduction=_how, case_constant=(1,))
    add("MultiLabelSoftMarginLoss", (X2, whole(4, 6, count=2).float()), reduction=_how)
    add("CosineEmbeddingLoss", (X2, _y, signs(4)), reduction=_how, margin=0.1)
    add("MarginRankingLoss", (draw(5), draw(5, seed=1), signs(5)), reduction=_how, margin=0.2)
    add("MultiMarginLoss", (X2, _classes), reduction=_how)
    add("TripletMarginLoss", (X2, _y, draw(4, 6, seed=5)), reduction=_how)
    add("TripletMarginWithDistanceLoss", (X2, _y, draw(4, 6, seed=5)), reduction=_how)
    add(
        "CTCLoss",
        (torch.log_softmax(draw(7, 2, 5), 2), whole(2, 3, count=5, low=1), torch.tensor([7, 6]), torch.tensor([3, 2])),
        reduction=_how, case_atol=1e-5,
    )  # fmt: skip
add("PoissonNLLLoss", (_p, _p * 5), log_input=False, full=True)
add("GaussianNLLLoss", (X2, _y, _p[:, 0]), full=True)
add("KLDivLoss", (_log, _log.roll(1)), reduction="batchmean", log_target=True)
add("NLLLoss", (_log, _classes), weight=_weight, ignore_index=2)
add("NLLLoss", (torch.log_softmax(X4, 1), _maps))
add("NLLLoss2d", (torch.log_softmax(X4, 1), _maps))
add("CrossEntropyLoss", (X2, _classes), weight=_weight, ignore_index=2, label_smoothing=0.1)
add("CrossEntropyLoss", (X4, _maps))
add("BCELoss", (_p, draw(4, 6, low=0, high=1)), weight=_weight)
add("BCEWithLogitsLoss", (X2, _p), weight=_weight, pos_weight=_weight)
add("MultiLabelSoftMarginLoss", (X2, whole(4, 6, count=2).float()), weight=_weight)
add("MultiMarginLoss", (X2, _classes), p=2, margin=0.5, weight=_weight)
add("TripletMarginLoss", (X2, _y, draw(4, 6, seed=5)), margin=2.0, p=1, swap=True)

# -- containers -----------------------------------------------------------------------------------------


def _network(nn: Any, carry: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(4, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3), nn.Flatten(),
        nn.Sequential(nn.Linear(36, 5), nn.Tanh(), nn.LayerNorm(5)), nn.Linear(5, 2, bias=False),
    )  # fmt: skip


CASES.append(Case("network", _network, (X4,), atol=1e-5, gradient_atol=1e-4))
