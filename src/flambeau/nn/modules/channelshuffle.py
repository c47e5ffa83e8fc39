"""`ChannelShuffle`: interleaves the channels of several groups."""

from __future__ import annotations

from flambeau.nn.functional import channel_shuffle
from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor


class ChannelShuffle(Module):
    """A layer that divides the channels of (N, C, *) into groups and interleaves the groups' channels."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
