"""Normalization of batches, with running statistics."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import int64
from flambeau.nn import functional as F
from flambeau.nn import init
from flambeau.nn.modules.lazy import LazyModuleMixin
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter, is_lazy
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class _NormBase(Module):
    """The base of batch and instance normalization: affine parameters and running statistics."""

    _version = 2

    spatial: tuple[int, ...]
    """How many dimensions the input may have."""

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, present in (("weight", affine), ("bias", affine and bias)):
            made = Parameter(creation.empty(num_features, device=device, dtype=dtype)) if present else None
            self.register_parameter(name, made)
        for name, make in (("running_mean", creation.zeros), ("running_var", creation.ones)):
            stats = make(num_features, device=device, dtype=dtype) if track_running_stats else None
            self.register_buffer(name, stats)
        count = tensor(0, dtype=int64, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running statistics to mean 0, variance 1 and no batches."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set weight to 1 and bias to 0, and reset the running statistics."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self.spatial:
            wanted = " or ".join([f"{n}D" for n in self.spatial])
            raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *more: Any) -> None:
        version = local_metadata.get("version", None)
        if (version is None or version < 2) and self.track_running_stats:  # saved before there was a counter
            state_dict.setdefault(f"{prefix}num_batches_tracked", self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


class _BatchNorm(_NormBase):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        factor = self._count_batch()
        uses_running = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if uses_running else None,
            self.running_var if uses_running else None,
            self.weight,
            self.bias,
            self.training or (self.running_mean is None and self.running_var is None),
            factor,
            self.eps,
        )

    def _count_batch(self) -> float:
        """Count this batch if the module is training. Returns the share with which it enters the running statistics."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean over all batches
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum


class BatchNorm1d(_BatchNorm):
    """Each channel of (N, C) or (N, C, L) less its mean, over its standard deviation, times weight plus bias.

    In training mean and variance are the batch's, and move the running ones by `momentum` (None: their mean over
    all batches); in evaluation they are the running ones, or the batch's if `track_running_stats` is False.
    """

    spatial = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` of (N, C, H, W)."""

    spatial = (4,)


class BatchNorm3d(_BatchNorm):
    """`BatchNorm1d` of (N, C, D, H, W)."""

    spatial = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of (N, C, ...) over the batches of all ranks of a group, on GPUs.

    In evaluation, and with one rank or no group, it works like `BatchNorm`. Batches of ranks may differ in size, and
    may be empty.

    Args:
        process_group: The group (default: all ranks).

    Raises:
        ValueError: If the input is on the CPU in training.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] == 0:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        group = self._group(input) if self.training else None
        if group is None:
            return super().forward(input)
        factor = self._count_batch()
        tracked = self.track_running_stats
        # The first rank that needs it imports it: most programs have no groups.
        return import_module("flambeau.nn.modules._functions").SyncBatchNorm.apply(
            input, self.weight, self.bias, self.running_mean if tracked else None,
            self.running_var if tracked else None, self.eps, factor, group,
        )  # fmt: skip

    def _group(self, input: Tensor) -> Any:
        """Return the process group, if it has several ranks."""
        room = sys.modules.get("flambeau.distributed.world")
        default = None if room is None else room.world().default
        if default is None:
            return None
        if input.device is CPU:
            raise ValueError("SyncBatchNorm expected input tensor to be on GPU or XPU or privateuseone")
        group = default if self.process_group is None else self.process_group
        return group if group.size() > 1 else None

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Any:
        """Return the module with a SyncBatchNorm in the place of each batch normalization, with its parameters and
        buffers.
        """
        converted = module
        if isinstance(module, _BatchNorm):
            converted = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                process_group, bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias"):
                setattr(converted, name, getattr(module, name))
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(converted, name, getattr(module, name))
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted


# -- lazy -----------------------------------------------------------------------------------------------


class _LazyNormBase(LazyModuleMixin, _NormBase):
    """A mixin of layers that take `num_features` from their first input."""

    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, False, False, device, dtype, bias=False)
        self.affine = affine
        self.track_running_stats = track_running_stats
        if affine:
            self.weight = UninitializedParameter(device=device, dtype=dtype)
            if bias:
                self.bias = UninitializedParameter(device=device, dtype=dtype)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
            self.num_batches_tracked = tensor(0, dtype=int64, device=device)

    def reset_parameters(self) -> None:
        if self.num_features and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        if not self.has_uninitialized_params():
            return
        self.num_features = input.shape[1]
        for unknown in (self.weight, self.bias, self.running_mean, self.running_var):
            if is_lazy(unknown):
                unknown.materialize((self.num_features,))
        self.reset_parameters()


class LazyBatchNorm1d(_LazyNormBase, BatchNorm1d):
    """`BatchNorm1d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNormBase, BatchNorm2d):
    """`BatchNorm2d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNormBase, BatchNorm3d):
    """`BatchNorm3d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm3d
