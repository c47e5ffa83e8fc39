"""Recurrent networks by cuDNN: all layers, directions and time steps of a network in one call."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from flambeau.driver.cuda.codegen.kernel_steps import KernelSteps
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.cudnn_recurrent import RecurrentPlan
from flambeau.driver.protocol import Launch, RecurrentNetwork


def recurrent_network(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Enqueue the forward pass. Params: the network and the names of its operands."""
    steps, plan, names = _prepare(launch, device, driver)
    steps.call(lambda places, native, stream: plan.forward(dict(zip(names, places, strict=True)), native))
    return steps


def recurrent_network_backward(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Enqueue the backward pass. Params: the network and the names of its operands."""
    steps, plan, names = _prepare(launch, device, driver)

    def run(places: Any, native: Any, stream: int) -> None:
        at = dict(zip(names, places, strict=True))
        if "dweights" in at:
            check(cu.cuMemsetD8Async(at["dweights"], 0, plan.weights, native))
        plan.backward(at, native)

    steps.call(run)
    return steps


def _prepare(launch: Launch, device: CudaDevice, driver: Any) -> tuple[KernelSteps, RecurrentPlan, list[str]]:
    network: RecurrentNetwork = launch.params[0]
    steps, plan = KernelSteps(launch, device, driver), RecurrentPlan(device, network)
    steps.on_close(plan.close)
    steps.memory(plan.work)
    return steps, plan, [*launch.params[1], "work"]
