"""torch._tensor: the module that PyTorch's pickles name for tensors."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.exchange.pickling import rebuild_subclass as _rebuild_from_type_v2
from flambeau.tensor.tensor import Tensor

__all__ = ["Tensor", "_rebuild_from_type_v2"]

explain_absent_names(globals(), "torch._tensor")
