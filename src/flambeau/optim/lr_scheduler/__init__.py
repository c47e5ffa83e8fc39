"""torch.optim.lr_scheduler: learning rates over time."""

from __future__ import annotations

from flambeau.optim.lr_scheduler.base import LRScheduler
from flambeau.optim.lr_scheduler.combined_schedulers import ChainedScheduler, SequentialLR
from flambeau.optim.lr_scheduler.curves import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from flambeau.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from flambeau.optim.lr_scheduler.plateau import ReduceLROnPlateau

_LRScheduler = LRScheduler  # its name in PyTorch 1

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
