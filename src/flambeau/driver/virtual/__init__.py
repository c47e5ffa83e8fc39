"""Virtual CUDA devices: what they model, and what they do not, is said at the top of `driver.py`."""

from flambeau.driver.virtual.driver import VirtualDriver
from flambeau.driver.virtual.scheduling.scheduler import CommandRecord

__all__ = ["CommandRecord", "VirtualDriver"]
