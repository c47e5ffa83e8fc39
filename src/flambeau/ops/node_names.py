"""PyTorch's names of the nodes of records whose own name does not say it.

A record may serve several of PyTorch's functions, or be one of several forms of one. Names that are here for a record
hold; then that of its `Derivative`; then the record's name in camel case and "Backward0".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.meta import Meta

Metas = Sequence[Meta | None]
Name = str | Callable[[Metas, tuple[Any, ...]], str]


def _reduced(stem: str) -> Name:
    """Two forms: of all elements, and along dimensions."""
    return lambda metas, params: f"{stem}Backward{0 if params and params[0] is None else 1}"


def _copied(metas: Metas, params: tuple[Any, ...]) -> str:
    """Of `copy`, which is `copy_` without params, and else `clone` or `to`."""
    if not params:
        return "CopyBackwards"
    source = metas[0]
    same = source is not None and params[0] is source.dtype and params[2:] in ((), (source.device,))
    return "CloneBackward0" if same else "ToCopyBackward0"


def _power(metas: Metas, params: tuple[Any, ...]) -> str:
    base, exponent = metas[0], metas[1]
    return "PowBackward2" if base is None else f"PowBackward{0 if exponent is None else 1}"


def _product(metas: Metas, params: tuple[Any, ...]) -> str:
    left, right = (0 if m is None else m.ndim for m in metas)
    found = {(1, 1): "Dot", (2, 1): "Mv", (2, 2): "Mm", (3, 3): "Bmm"}.get((left, right))
    return f"{found}Backward0" if found else "UnsafeViewBackward0"


def _classified(metas: Metas, params: tuple[Any, ...]) -> str:
    """Classes of rows, or of pixels."""
    scores = metas[0]
    return "NllLoss2DBackward0" if scores is not None and scores.ndim > 2 else "NllLossBackward0"


NAMES: dict[str, Name] = {
    "add.alpha": "AddBackward0",
    "batch_norm_train": "NativeBatchNormBackward0",
    "clamp": "ClampBackward1",
    "clamp_min": "ClampBackward1",
    "copy": _copied,
    "deg2rad": "Deg2RadBackward0",
    "_fft_c2c": "FftC2CBackward0",
    "_fft_c2r": "FftC2RBackward0",
    "_fft_r2c": "FftR2CBackward0",
    "fill": "FillBackward2",
    "group_norm": "NativeGroupNormBackward0",
    "layer_norm": "NativeLayerNormBackward0",
    "lerp": lambda metas, params: f"LerpBackward{0 if metas[2] is None else 1}",
    "log1p": "Log1PBackward0",
    "matmul": _product,
    "max_all": "MaxBackward1",
    "mean": _reduced("Mean"),
    "median": "MedianBackward1",
    "median_all": "MedianBackward0",
    "min_all": "MinBackward1",
    "nanmedian": "NanmedianBackward1",
    "nanmedian_all": "NanmedianBackward0",
    "nansum": "NansumBackward0",
    "nll_loss": _classified,
    "norm": "LinalgVectorNormBackward0",
    "pow": _power,
    "prelu": "PreluKernelBackward0",
    "prod": _reduced("Prod"),
    "rad2deg": "Rad2DegBackward0",
    "special_xlog1py": "SpecialXlog1PyBackward0",
    "sub.alpha": "SubBackward0",
    "sum": _reduced("Sum"),
}
