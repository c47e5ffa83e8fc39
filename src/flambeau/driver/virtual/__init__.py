"""Virtual CUDA devices. The docstring of `driver.py` says what they model and what they do not."""

from flambeau.driver.virtual.driver import VirtualDriver
from flambeau.driver.virtual.scheduling.scheduler import CommandRecord

__all__ = ["CommandRecord", "VirtualDriver"]
