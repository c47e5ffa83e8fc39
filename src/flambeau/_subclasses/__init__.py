"""torch._subclasses: fake tensors, which have a shape, a dtype and a device, but no values."""

from __future__ import annotations

from flambeau._subclasses import fake_tensor
from flambeau._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from flambeau.core.public_names import explain_absent_names

__all__ = ["FakeTensor", "FakeTensorMode"]

explain_absent_names(globals(), "torch._subclasses")
