"""Builders of routines by the names that `Routine` forms give: `TABLE` of our own, `LIBRARIES` of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.driver.api import Launch
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.cuda.index import (
    histogram,
    indexing,
    joining,
    permutation,
    ranks,
    searching,
    sorting,
    unique,
)
from flambeau.driver.cuda.linalg import (
    geometry,
    linear_solve,
    norms,
    products,
    sparse_matrices,
    spectra,
    transforms,
)
from flambeau.driver.cuda.nn import (
    attention,
    attention_gradients,
    convolution,
    direct_convolution,
    im2col,
    losses,
    normalizing,
    normalizing_gradients,
    padding,
    pooling,
    resampling,
    rnn_cells,
    sampling,
    softmax,
)

TABLE: dict[str, Callable[[Launch, CudaDevice], KernelProgram | KernelPlan]] = {
    **attention.ROUTINES,
    **attention_gradients.KERNELS,
    **rnn_cells.ROUTINES,
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
    **sparse_matrices.ROUTINES,
    **sorting.ROUTINES,
    **im2col.ROUTINES,
    **pooling.ROUTINES,
    **resampling.ROUTINES,
    **sampling.ROUTINES,
    **unique.ROUTINES,
}

SMALL: dict[str, Callable[[Launch, CudaDevice], KernelProgram | None]] = {
    "matmul": products.direct_product,
    "addmm": products.direct_product,
    "convolution": lambda launch, device: direct_convolution.convolution(launch),
}
"""Kernels of our own for what is small; None where one of `LIBRARIES` runs."""


def _convolution(launch: Launch, device: CudaDevice, driver: Any) -> Any:
    return direct_convolution.convolution(launch) or convolution.convolution(launch, device, driver)


LIBRARIES: dict[str, Callable[[Launch, CudaDevice, Any], Any]] = {
    **attention_gradients.ROUTINES,
    **convolution.ROUTINES,
    "convolution": _convolution,
    **linear_solve.ROUTINES,
    **products.ROUTINES,
    **spectra.ROUTINES,
    **transforms.ROUTINES,
}
"""Each builds a program, or `run(ptrs, scalars, native stream, stream handle)`, whose `close`, if it has one, unloading
calls."""
