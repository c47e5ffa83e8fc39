"""torch.distributed.tensor.placement_types: the placements of a tensor on one dimension of a mesh, as values."""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.core.absent import absent_class
from flambeau.core.public_names import explain_absent_names

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
explain_absent_names(globals(), "torch.distributed.tensor.placement_types")


class Placement:
    """The placement of a tensor on one dimension of a mesh: the base of `Shard`, `Replicate` and `Partial`."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Return True if this is a `Shard`, along `dim` if `dim` is not None."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return True if this is a `Replicate`."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return True if this is a `Partial`, with `reduce_op` if that is not None."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """The placement in which each rank has one part of the tensor along `dim`.

    Attributes:
        dim: The dimension of the tensor that is divided.
    """

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"

    @staticmethod
    def local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        """Return the number of elements that a rank has along a dimension, and the index of the first.

        Args:
            curr_local_size: Elements of the dimension that is divided.
            num_chunks: The number of ranks.
            rank: The rank, from 0.
        """
        chunk = -(-curr_local_size // num_chunks)
        start = min(chunk * rank, curr_local_size)
        return min(chunk, curr_local_size - start), start


@dataclass(frozen=True)
class Replicate(Placement):
    """A placement in which each rank has the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, repr=False)
class Partial(Placement):
    """A placement in which each rank has a summand of the tensor; `reduce_op` combines the summands.

    Attributes:
        reduce_op: "sum", "avg", "product", "max" or "min".
    """

    reduce_op: str = "sum"

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


_StridedShard = absent_class(
    "torch.distributed.tensor.placement_types", "_StridedShard", "Use Shard.", Placement
)
