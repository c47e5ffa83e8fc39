"""Host time that the race detector adds to a launch and to a training step.

Prints microseconds per launch (best of many blocks) of the bare driver's launch, of the watched one, and of other
calls that the detector observes: a block allocated and freed, an event recorded and waited for. The aim is at
most 2 us a launch. Then what a training step of an MLP takes on a virtual GPU without the detector and with it; the
aim is at most 1.5 times. `python bench/races.py`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import flambeau as torch
from flambeau.runtime import current, system
from flambeau.tensor import call

BLOCK, BLOCKS, STEPS = 2_000, 40, 300


def microseconds(run: Callable[[], Any]) -> float:
    """Return the mean of the fastest block: the cost of the code without disturbances."""
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(BLOCK):
            run()
        best = min(best, time.perf_counter() - start)
    return best / BLOCK * 1e6


def nothing(*given: Any) -> None:
    pass


def rows() -> list[tuple[str, float]]:
    with torch.virtual(devices=1, races="warn"):
        a, b = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda")
        c = a + b
        torch.add(a, b, out=c), torch.neg(a, out=c), torch.addcmul(a, b, c), a.add_(b)
        torch.cuda.synchronize()
        driver = system.context_of(a.device).driver
        handle = current.local.streams[0].handle
        driver.inner.launcher = lambda exe: nothing
        loaded = [plan.executable for plan in call.plans.values() if plan.executable]
        launches = {len(exe.launch.operands): exe for exe in loaded}
        ptrs = (c.ptr, a.ptr, b.ptr, a.ptr)
        found = [("the call below, that does nothing", microseconds(lambda: nothing(None, ptrs, (), handle)))]
        for count, exe in sorted(launches.items()):
            given = ptrs[:count]
            launch = driver.launcher(exe)
            cost = microseconds(lambda launch=launch, given=given: launch(given, (), handle))
            found.append((f"a launch of {count} operands", cost))

        def hand_out() -> None:
            driver.block_alloc(c.ptr, 4096, handle, True)
            driver.block_free(c.ptr, 4096, handle)

        return [*found, ("a result's block handed out and freed", microseconds(hand_out))]


def step_us(races: str | None) -> float:
    """Return the median microseconds of a training step of an MLP on a virtual GPU."""
    with torch.virtual(devices=1, races=races):
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        data, labels = torch.randn(32, 64, device="cuda"), torch.randint(10, (32,), device="cuda")
        took = []
        for _ in range(STEPS):
            start = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(data), labels).backward()
            optimizer.step()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e6


def main() -> None:
    print(f"{'':40}{'us':>8}")
    for name, cost in rows():
        print(f"{name:40}{cost:8.2f}")
    without, watched = step_us("off"), step_us("warn")
    print(
        f"a step of an MLP {without:.0f} us without the detector, {watched:.0f} with it: {watched / without:.2f}"
    )


if __name__ == "__main__":
    main()
