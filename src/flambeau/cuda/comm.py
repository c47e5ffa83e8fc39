"""torch.cuda.comm: copies and sums of tensors over several GPUs."""

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.parallel.comm import (
    broadcast,
    broadcast_coalesced,
    gather,
    reduce_add,
    reduce_add_coalesced,
    scatter,
)

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]

explain_absent_names(globals(), "torch.cuda.comm")
