"""The choice of a launch's native body, by the form of its CUDA implementation."""

from __future__ import annotations

from flambeau.driver.api import Body, Expression, Fold, Launch, Lists, Routine
from flambeau.driver.host.kernels.native import elements, folds, lists, rows
from flambeau.driver.host.kernels.native.library import library


def native_body(launch: Launch) -> Body | None:
    """Return the native body of a launch; None if NumPy computes it."""
    loaded, form = library(), launch.kernel.cuda
    if loaded is None:
        return None
    if isinstance(form, Expression):
        return elements.body(loaded, launch, form)
    if isinstance(form, Lists):
        return lists.body(loaded, launch, form)
    if isinstance(form, Fold):
        return folds.body(loaded, launch, form)
    return rows.body(loaded, launch, form) if isinstance(form, Routine) else None
