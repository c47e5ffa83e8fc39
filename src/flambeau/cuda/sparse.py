"""torch.cuda.sparse: the legacy classes of sparse tensors on CUDA devices."""

from __future__ import annotations

from flambeau.tensor.sparse.old_types import old_types as _old_types

globals().update(_old_types("cuda", __name__))
