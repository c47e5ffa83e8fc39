"""The choice of a launch's native body, by the form of its CUDA implementation."""

from __future__ import annotations

from flambeau.driver.api import Body, Expression, Launch
from flambeau.driver.host.kernels.native import elements
from flambeau.driver.host.kernels.native.library import library


def native_body(launch: Launch) -> Body | None:
    """Return the native body of a launch; None if NumPy computes it."""
    loaded, form = library(), launch.kernel.cuda
    if loaded is None or not isinstance(form, Expression):
        return None
    return elements.body(loaded, launch, form)
