"""Normalization of each channel of each sample."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.nn import functional as F
from flambeau.nn.modules.batchnorm import _LazyNormBase, _NormBase
from flambeau.tensor.tensor import Tensor


class _InstanceNorm(_NormBase):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        unbatched = input.dim() == self.spatial[0]
        dim = 0 if unbatched else 1
        if input.shape[dim] != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={dim} to match num_features ({self.num_features}), but got: "
                    f"{input.shape[dim]}."
                )
            warnings.warn(
                f"input's size at dim={dim} does not match num_features. You can silence this warning by not passing "
                "in num_features, which is not used because affine=False",
                stacklevel=2,
            )
        return self._normalize(input.unsqueeze(0)).squeeze(0) if unbatched else self._normalize(input)

    def _normalize(self, input: Tensor) -> Tensor:
        return F.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        if local_metadata.get("version", None) is None and not self.track_running_stats:
            stale = [k for k in (f"{prefix}running_mean", f"{prefix}running_var") if k in state_dict]
            for key in stale:
                del state_dict[key]
            if stale:
                error_msgs.append(self._complaint(stale))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _complaint(self, stale: list[str]) -> str:
        names, kind = " and ".join([f'"{k}"' for k in stale]), type(self).__name__
        return (
            f"Unexpected running stats buffer(s) {names} for {kind} with track_running_stats=False. If state_dict is a "
            f"checkpoint saved before 0.4.0, this may be expected because {kind} does not track running stats by "
            "default since 0.4.0. Please remove these keys from state_dict. If the running stats are actually needed, "
            f"instead set track_running_stats=True in {kind} to enable them. See the documentation of {kind} for "
            "details."
        )


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample of (N, C, L) or (C, L) less its mean, over its standard deviation."""

    spatial = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """`InstanceNorm1d` of (N, C, H, W) or (C, H, W)."""

    spatial = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """`InstanceNorm1d` of (N, C, D, H, W) or (C, D, H, W)."""

    spatial = (4, 5)


class LazyInstanceNorm1d(_LazyNormBase, InstanceNorm1d):
    """`InstanceNorm1d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNormBase, InstanceNorm2d):
    """`InstanceNorm2d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNormBase, InstanceNorm3d):
    """`InstanceNorm3d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm3d
