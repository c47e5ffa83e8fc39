"""torch._subclasses: tensors without data for PyTorch's compiler, of which there are none."""

from __future__ import annotations

from flambeau._subclasses import fake_tensor
from flambeau._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from flambeau.core.names import explain_absent_names

__all__ = ["FakeTensor", "FakeTensorMode"]

explain_absent_names(globals(), "torch._subclasses")
