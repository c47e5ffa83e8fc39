"""Builders of routines by the names that `Routine` forms give: `TABLE` of our own, `LIBRARIES` of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.driver.api import Launch
from flambeau.driver.cuda import (
    attention,
    attention_gradients,
    cells,
    columns,
    convolution,
    direct_convolution,
    equations,
    geometry,
    histogram,
    indexing,
    joining,
    losses,
    normalizing,
    normalizing_gradients,
    norms,
    padding,
    permutation,
    pooling,
    products,
    ranks,
    resampling,
    sampling,
    searching,
    softmax,
    sorting,
    spectra,
    transforms,
    unique,
)
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.passes import Plan
from flambeau.driver.cuda.program import Program

TABLE: dict[str, Callable[[Launch, Device], Program | Plan]] = {
    **attention.ROUTINES,
    **attention_gradients.KERNELS,
    **cells.ROUTINES,
    **geometry.ROUTINES,
    **histogram.ROUTINES,
    **indexing.ROUTINES,
    **joining.ROUTINES,
    **losses.ROUTINES,
    **normalizing.ROUTINES,
    **normalizing_gradients.ROUTINES,
    **norms.ROUTINES,
    **padding.ROUTINES,
    **permutation.ROUTINES,
    **ranks.ROUTINES,
    **searching.ROUTINES,
    **softmax.ROUTINES,
    **sorting.ROUTINES,
    **columns.ROUTINES,
    **pooling.ROUTINES,
    **resampling.ROUTINES,
    **sampling.ROUTINES,
    **unique.ROUTINES,
}


def _convolution(launch: Launch, device: Device, driver: Any) -> Any:
    return direct_convolution.convolution(launch) or convolution.convolution(launch, device, driver)


LIBRARIES: dict[str, Callable[[Launch, Device, Any], Any]] = {
    **attention_gradients.ROUTINES,
    **convolution.ROUTINES,
    "convolution": _convolution,
    **equations.ROUTINES,
    **products.ROUTINES,
    **spectra.ROUTINES,
    **transforms.ROUTINES,
}
"""Each builds a program, or `run(ptrs, scalars, native stream, stream handle)`, whose `close`, if it has one, unloading
calls."""
