"""Channels to pixels and back."""

from __future__ import annotations

from flambeau.nn.functional import pixel_shuffle, pixel_unshuffle
from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor


class PixelShuffle(Module):
    """A layer that rearranges (*, C r^2, H, W) to (*, C, H r, W r), where r is the upscale factor."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """A layer that rearranges (*, C, H r, W r) to (*, C r^2, H, W), where r is the downscale factor."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"
