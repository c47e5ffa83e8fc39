"""Contexts and streams over a fake driver, for tests of the allocators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fake_drivers import FakeDriver

from flambeau.core.device import device
from flambeau.driver.protocol import Driver
from flambeau.runtime.device_context import Context


def context_over(driver: FakeDriver) -> Any:
    return Context(device("cuda", 0), 0, cast(Driver, driver), 0)


def stream_of(context: Any, handle: int) -> Any:
    return SimpleNamespace(context=context, handle=handle, queue=context.orders.queue(handle))
