"""`scaled_dot_product_attention` by matrix products, for some samples at a time, so that scores need little memory."""

from __future__ import annotations

from typing import Any

from flambeau.driver.cuda.codegen.kernel_steps import KernelSteps
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.linalg.products import MATMUL
from flambeau.driver.cuda.nn.attention_gradients import WEIGHTS, factor, parts_of, transpose
from flambeau.driver.protocol import Launch


def attention(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Return the steps of attention. Params: (causal, scale, whether TF32 is allowed)."""
    steps = KernelSteps(launch, device, driver)
    causal, scale, tf32 = launch.params
    q, k, v, *masks = steps.inputs
    for take, (weights,) in parts_of(steps, q, k, 1):
        out, sums = (take(x) for x in steps.outputs)
        query, key, value = (factor(steps, take(x)) for x in (q, k, v))
        steps.run_all(MATMUL, (weights,), (query, transpose(key)), (tf32,))
        steps.run_all(WEIGHTS, (weights, sums), [take(x) for x in masks], (causal, float(scale)))
        steps.run_all(MATMUL, (out,), (weights, value), (tf32,))
    return steps
