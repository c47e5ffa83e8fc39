"""torch.functional: the functions that PyTorch defines in Python; `torch` shows them, too."""

from __future__ import annotations

import flambeau
from flambeau.core.public_names import explain_absent_names

_NAMES = (
    "align_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes", "broadcast_tensors",
    "cartesian_prod", "cdist", "chain_matmul", "einsum", "istft", "lu", "meshgrid", "norm", "pca_lowrank", "split",
    "stft", "svd_lowrank", "tensordot", "unique", "unique_consecutive", "unravel_index",
)  # fmt: skip
globals().update({name: getattr(flambeau, name) for name in _NAMES if hasattr(flambeau, name)})
__all__ = [name for name in _NAMES if name in globals()]
explain_absent_names(globals(), "torch.functional")
