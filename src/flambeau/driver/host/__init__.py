"""The CPU as a driver."""

from flambeau.driver.host.driver import HostDriver

__all__ = ["HostDriver"]
