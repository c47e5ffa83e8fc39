"""Tracing with tensors: `make_fx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.core.names import explain_absent_names, publish

__all__ = ["get_proxy_mode", "make_fx"]


def make_fx(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Raise NotSupportedError: `make_fx` records PyTorch's ATen operators, which Flambeau does not have."""
    name = getattr(f, "__name__", repr(f))
    raise NotSupportedError(
        f"make_fx({name}) records a graph of PyTorch's ATen operators, and Flambeau's operators are others. To record "
        "the functions and methods that a program calls, use torch.fx.symbolic_trace or a torch.fx.Tracer."
    )


def get_proxy_mode() -> None:
    """Return None: no `make_fx` is running."""
    return


publish(globals())
explain_absent_names(globals(), "torch.fx.experimental.proxy_tensor")
