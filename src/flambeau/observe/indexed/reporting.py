"""Launches whose kernels report the elements that their indices select, just before they run."""

from __future__ import annotations

from typing import Any

from flambeau.driver.protocol import Body, Kernel, Launch, host_body


def reporting(launch: Launch) -> Launch:
    """Return a launch with one more input at the end: an object whose `report` gets the kernel's inputs, or None.

    Cost, name and operands are those of `launch`.
    """
    kernel = launch.kernel

    def plain(changed: Launch) -> Launch:
        return changed.with_(kernel=kernel, inputs=changed.inputs[:-1])

    def host(changed: Launch) -> Body:
        body = host_body(plain(changed))

        def report_and_run(outputs: list[Any], inputs: list[Any]) -> None:
            probe = inputs.pop()
            if probe is not None:
                probe.report(inputs)
            body(outputs, inputs)

        return report_and_run

    changed: Kernel = kernel.with_(
        host=host,
        fast=None,
        flops=lambda it: kernel.flops(plain(it)),
        rate=lambda it: kernel.rate(plain(it)),
        touches=lambda it: kernel.touches(plain(it)),
    )
    return launch.with_(kernel=changed, inputs=(*launch.inputs, object))
