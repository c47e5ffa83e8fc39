"""torch._subclasses.fake_tensor: the question whether a tensor is fake, which none is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flambeau.core.absent import absent_class
from flambeau.core.names import explain_absent_names

__all__ = ["FakeTensor", "FakeTensorMode", "is_fake", "maybe_get_fake_mode", "unset_fake_temporarily"]

_ADVICE = "Use torch.virtual(data=False) to run a program without data."
FakeTensor = absent_class("torch._subclasses.fake_tensor", "FakeTensor", _ADVICE)
FakeTensorMode = absent_class("torch._subclasses.fake_tensor", "FakeTensorMode", _ADVICE)


def is_fake(x: object) -> bool:
    """Return False, because there are no fake tensors."""
    return isinstance(x, FakeTensor)


def maybe_get_fake_mode(t: object) -> None:
    """Return None, because there are no fake tensors."""


@contextmanager
def unset_fake_temporarily() -> Iterator[None]:
    """Run a block outside of the mode of fake tensors, in which no program is."""
    yield


explain_absent_names(globals(), "torch._subclasses.fake_tensor")
