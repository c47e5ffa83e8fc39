"""The CPU behind the contract of drivers, in driver."""

from flambeau.driver.host.driver import HostDriver

__all__ = ["HostDriver"]
