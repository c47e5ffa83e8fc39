"""Calls of `torch.nn.functional` with one wrong argument: each parameter of each function that PyTorch writes in Python.

    PYTHONPATH=src:tests python -m hunt.functional_calls --seed 0 --count 20000 [--only pad] [--all]

`api_calls` draws all arguments, so that few of its calls reach the end of a function. Here all arguments fit but one.
"""

from __future__ import annotations

import inspect
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
from hunt.api_calls import ODD, Call, Like, Name, T, main
from support import torch

ROOM = "nn.functional"
X, X3, X4, X5 = T((3, 4)), T((2, 4, 6)), T((2, 4, 6, 6)), T((1, 2, 4, 4, 4))
Y, UNIT, OTHER = T((3, 4), seed=2), T((3, 4), fill="unit"), T((3, 4), fill="unit", seed=2)
CHANNELS, CLASSES = T((4,)), T((3,), "int64", fill="index")
WRONG = [
    *ODD, "", (), (1, 1), [1, 1], [1.0], (2.0, 2.0), ["x"], [None], 1, 2, 1 << 70, len, np.float32(1), np.int64(1), np.ones(1),
    np.ones((3, 4), np.float32), np.bool_(True), T((), "bool"), T((1,), "int64", fill="index"), T((1, 1)), T((3, 4)),
    [T(())], Like("Size", (1, 1)), Name("float64"),
]  # fmt: skip


def _spatial() -> Iterator[tuple[str, dict[str, Any]]]:
    for ndim, x in ((1, X3), (2, X4), (3, X5)):
        if ndim > 1:
            yield f"adaptive_avg_pool{ndim}d", {"input": x, "output_size": 2}
            samples = T((*x.shape[:2], ndim), fill="unit")
            for size, ratio in ((2, None), (None, (0.5,) * ndim)):
                for name in (f"fractional_max_pool{ndim}d", f"fractional_max_pool{ndim}d_with_indices"):
                    yield name, {"input": x, "kernel_size": 2, "output_size": size, "output_ratio": ratio,
                                 "return_indices": False, "_random_samples": samples}  # fmt: skip
        for indices in (False, True):
            yield f"adaptive_max_pool{ndim}d", {"input": x, "output_size": 2, "return_indices": indices}
            yield f"max_pool{ndim}d", {"input": x, "kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1,
                                       "ceil_mode": False, "return_indices": indices}  # fmt: skip
        yield f"adaptive_max_pool{ndim}d_with_indices", {"input": x, "output_size": 2}
        for stride in (None, 1):
            yield (
                f"lp_pool{ndim}d",
                {"input": x, "norm_type": 2.0, "kernel_size": 2, "stride": stride, "ceil_mode": False},
            )
        small, places = (
            T((*x.shape[:2], *(2,) * ndim)),
            T((*x.shape[:2], *(2,) * ndim), "int64", fill="index"),
        )
        for size in (None, (4,) * ndim):
            yield f"max_unpool{ndim}d", {"input": small, "indices": places, "kernel_size": 2, "stride": None, "padding": 0,
                                         "output_size": size}  # fmt: skip
        for train in (False, True):
            yield f"dropout{ndim}d", {"input": x, "p": 0.0, "training": train, "inplace": False}


def _losses() -> Iterator[tuple[str, dict[str, Any]]]:
    three = T((3,))
    for old, reduction in ((None, "mean"), (True, "mean"), (None, "none"), (None, "sum")):
        legacy = {"size_average": old, "reduce": old, "reduction": reduction}
        pair = {"input": X, "target": Y}
        units = {"input": UNIT, "target": OTHER}
        for name, more in (
            ("l1_loss", {}),
            ("mse_loss", {}),
            ("smooth_l1_loss", {"beta": 1.0}),
            ("soft_margin_loss", {}),
        ):
            yield name, {**pair, **legacy, **more}
        for name in ("l1_loss", "mse_loss"):
            yield name, {**pair, **legacy, "weight": Y}
        for weight in (None, Y):
            yield "huber_loss", {**pair, "reduction": reduction, "delta": 1.0, "weight": weight}
        for weight in (None, CHANNELS):
            yield "binary_cross_entropy", {**units, "weight": weight, **legacy}
            classes = {"target": CLASSES, "weight": weight, "size_average": old, "ignore_index": -100, "reduce": old,
                       "reduction": reduction}  # fmt: skip
            yield "nll_loss", {"input": X, **classes}
            yield "cross_entropy", {"input": X, **classes, "label_smoothing": 0.0}
            yield (
                "multi_margin_loss",
                {"input": X, "target": CLASSES, "p": 1, "margin": 1.0, "weight": weight, **legacy},
            )
        yield "cross_entropy", {"input": X, "target": OTHER, "reduction": reduction, "label_smoothing": 0.1}
        yield (
            "binary_cross_entropy_with_logits",
            {"input": X, "target": OTHER, "weight": None, **legacy, "pos_weight": None},
        )
        yield "cosine_embedding_loss", {"input1": X, "input2": Y, "target": CLASSES, "margin": 0.1, **legacy}
        yield "hinge_embedding_loss", {**pair, "margin": 1.0, **legacy}
        for log in (False, True):
            yield "kl_div", {"input": X, "target": OTHER, **legacy, "log_target": log}
            yield "poisson_nll_loss", {**units, "log_input": log, "full": not log, "size_average": old, "eps": 1e-8,
                                       "reduce": old, "reduction": reduction}  # fmt: skip
        yield (
            "margin_ranking_loss",
            {"input1": three, "input2": T((3,), seed=2), "target": three, "margin": 0.1, **legacy},
        )
        yield "multilabel_margin_loss", {"input": X, "target": T((3, 4), "int64", fill="index"), **legacy}
        yield "multilabel_soft_margin_loss", {"input": X, "target": OTHER, "weight": None, **legacy}
        triplet = {"anchor": X, "positive": Y, "negative": T((3, 4), seed=3)}
        yield (
            "triplet_margin_loss",
            {**triplet, "margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, **legacy},
        )
        yield "triplet_margin_with_distance_loss", {**triplet, "distance_function": None, "margin": 1.0, "swap": False,
                                                    "reduction": reduction}  # fmt: skip
        yield "gaussian_nll_loss", {**pair, "var": UNIT, "full": False, "eps": 1e-6, "reduction": reduction}
        yield "ctc_loss", {"log_probs": T((6, 2, 4)), "targets": T((2, 2), "int64", fill="index"),
                           "input_lengths": (6, 5), "target_lengths": (2, 1), "blank": 2, "reduction": reduction,
                           "zero_infinity": False}  # fmt: skip
        yield "linear_cross_entropy", {"input": X, "linear_weight": T((5, 4)), "target": CLASSES, "linear_bias": None,
                                       "weight": None, "reduction": reduction, "ignore_index": None,
                                       "label_smoothing": 0.0, "options": None}  # fmt: skip


def _others() -> Iterator[tuple[str, dict[str, Any]]]:
    for inplace in (False, True):
        for name in ("hardsigmoid", "hardswish", "mish", "relu", "relu6", "selu", "silu"):
            yield name, {"input": X, "inplace": inplace}
        yield "hardtanh", {"input": X, "min_val": -1.0, "max_val": 1.0, "inplace": inplace}
        yield "leaky_relu", {"input": X, "negative_slope": 0.01, "inplace": inplace}
        yield "threshold", {"input": X, "threshold": 0.1, "value": 20.0, "inplace": inplace}
        yield "rrelu", {"input": X, "lower": 0.125, "upper": 0.33, "training": False, "inplace": inplace}
        for name in ("celu", "elu"):
            yield name, {"input": X, "alpha": 1.0, "inplace": inplace}
        for name in ("alpha_dropout", "dropout", "feature_alpha_dropout"):
            yield name, {"input": X3, "p": 0.0, "training": not inplace, "inplace": inplace}
        yield "gumbel_softmax", {"logits": X, "tau": 1.0, "hard": inplace, "eps": 1e-10, "dim": -1}
    for corners in (None, True):
        yield "affine_grid", {"theta": T((2, 2, 3)), "size": (2, 3, 4, 4), "align_corners": corners}
        yield "grid_sample", {"input": T((1, 1, 3, 3)), "grid": T((1, 2, 2, 2)), "mode": "bilinear", "padding_mode": "zeros",
                              "align_corners": corners}  # fmt: skip
    for size, scale, mode, corners, again in (
        (3, None, "nearest", None, None), (None, 2.0, "bilinear", True, True), ((3, 3), None, "bicubic", False, None),
        (3, None, "area", None, None), (None, 1.5, "bilinear", None, False),
    ):  # fmt: skip
        yield "interpolate", {"input": X4, "size": size, "scale_factor": scale, "mode": mode, "align_corners": corners,
                              "recompute_scale_factor": again, "antialias": False}  # fmt: skip
    yield "upsample", {"input": X4, "size": 3, "scale_factor": None, "mode": "nearest", "align_corners": None}
    yield "upsample_bilinear", {"input": X4, "size": None, "scale_factor": 2}
    yield "upsample_nearest", {"input": X4, "size": 3, "scale_factor": None}
    rows = {"weight": T((4, 3)), "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
    places = T((2, 3), "int64", fill="index")
    for padding, norm in ((None, None), (1, 1.0)):
        yield "embedding", {"input": places, **rows, "padding_idx": padding, "max_norm": norm}
    bags = {**rows, "include_last_offset": False, "per_sample_weights": None}
    for mode in ("mean", "sum", "max"):
        yield (
            "embedding_bag",
            {"input": places, **bags, "offsets": None, "max_norm": None, "mode": mode, "padding_idx": None},
        )
    yield "embedding_bag", {**bags, "input": T((6,), "int64", fill="index"), "offsets": T((1,), "int64", fill="zero"),
                            "max_norm": 1.0, "mode": "sum", "per_sample_weights": T((6,)), "padding_idx": 1}  # fmt: skip
    yield (
        "fold",
        {
            "input": T((1, 8, 4)),
            "output_size": (4, 4),
            "kernel_size": (2, 2),
            "dilation": 1,
            "padding": 0,
            "stride": 2,
        },
    )
    yield "unfold", {"input": X4, "kernel_size": 2, "dilation": 1, "padding": 0, "stride": 1}
    yield "glu", {"input": X, "dim": -1}
    for weight in (None, CHANNELS):
        affine = {"weight": weight, "bias": weight, "eps": 1e-5}
        yield "group_norm", {"input": X3, "num_groups": 2, **affine}
        yield "layer_norm", {"input": X, "normalized_shape": (4,), **affine}
        yield "rms_norm", {"input": X, "normalized_shape": [4], "weight": weight, "eps": None}
        moments = {"running_mean": weight, "running_var": T((4,), fill="unit") if weight else None}
        yield "batch_norm", {"input": X4, **moments, **affine, "training": weight is None, "momentum": 0.1}
        yield "instance_norm", {"input": X4, **affine, "use_input_stats": True, "momentum": 0.1}
    yield "local_response_norm", {"input": X4, "size": 2, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
    for name in ("softmax", "log_softmax", "softmin"):
        for dim in (1, None):
            yield name, {"input": X, "dim": dim, "_stacklevel": 3, "dtype": None}
    yield "normalize", {"input": X, "p": 2.0, "dim": 1, "eps": 1e-12}
    for mode, value in (("constant", 1.0), ("reflect", None), ("circular", None), ("replicate", None)):
        yield "pad", {"input": X4, "pad": (1, 1, 1, 1), "mode": mode, "value": value}
    heads = {"query": T((3, 2, 4)), "key": T((3, 2, 4)), "value": T((3, 2, 4)), "embed_dim_to_check": 4, "num_heads": 2,
             "in_proj_bias": T((12,)), "dropout_p": 0.0, "out_proj_weight": T((4, 4)), "out_proj_bias": T((4,)),
             "attn_mask": None, "static_k": None, "static_v": None, "average_attn_weights": True, "is_causal": False}  # fmt: skip
    none = {
        "bias_k": None,
        "bias_v": None,
        "q_proj_weight": None,
        "k_proj_weight": None,
        "v_proj_weight": None,
    }
    yield "multi_head_attention_forward", {**heads, **none, "in_proj_weight": T((12, 4)), "add_zero_attn": False,
                                           "training": True, "need_weights": True}  # fmt: skip
    own = {name: T((4, 4)) for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")}
    yield "multi_head_attention_forward", {**heads, **own, "bias_k": T((1, 1, 4)), "bias_v": T((1, 1, 4)),
                                           "in_proj_weight": None, "use_separate_proj_weight": True, "add_zero_attn": True,
                                           "training": False, "need_weights": False}  # fmt: skip


BASES = [*_spatial(), *_losses(), *_others()]


def calls(seed: int, count: int, only: str = "") -> Iterator[Call]:
    """Yield calls of a seed: one argument of each is wrong, or none."""
    rng = random.Random(seed)
    bases = [base for base in BASES if only in ("", base[0])]
    for _ in range(count):
        name, arguments = rng.choice(bases)
        arguments = dict(arguments)
        arguments[rng.choice([*arguments])] = rng.choice(WRONG)
        placed = []
        if rng.random() < 0.5:
            for parameter in inspect.signature(getattr(torch.nn.functional, name)).parameters.values():
                if parameter.name not in arguments or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                    break
                placed.append(arguments.pop(parameter.name))
        yield Call(ROOM, name, tuple(placed), arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(__doc__, calls)
