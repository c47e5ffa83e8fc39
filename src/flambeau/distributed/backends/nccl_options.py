"""`ProcessGroupNCCL.Options`: the options that `pg_options` of GPU groups may contain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.distributed.constants import default_pg_nccl_timeout


class _Config:
    """The settings of an NCCL communicator, which Flambeau leaves to NCCL and its environment."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise NotSupportedError(
            f"ProcessGroupNCCL.Options.config.{name}: Flambeau's communicators have NCCL's own defaults"
        )


class ProcessGroupNCCL:
    """The name of nccl's groups, for its `Options`. Groups come from `init_process_group` and `new_group`."""

    __module__ = "flambeau.distributed"

    class Options:
        """The options of the "nccl" backend. `is_high_priority_stream` gives the group's streams a higher priority.

        How long operations may take is the group's `timeout` argument, as in PyTorch: `_timeout` changes nothing.
        """

        backend = "nccl"

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = _Config()
            self._timeout = default_pg_nccl_timeout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotSupportedError("ProcessGroupNCCL: groups are made by init_process_group and new_group")


def priority_of(options: Any, devices: Mapping[str, str], timeout: timedelta) -> int:
    """Return the priority of a group's streams: 0, or -1 for high.

    Raises:
        AssertionError: For other options.
    """
    if options is None or "nccl" not in devices.values():
        return 0
    if not isinstance(options, ProcessGroupNCCL.Options):
        raise AssertionError("Expected backend_options argument to be of type ProcessGroupNCCL.Options")
    if options._timeout != timeout:
        warnings.warn(
            "backend_options._timeout was specified, but timeout kwarg has a default value that will always override "
            "it. ",
            stacklevel=3,
        )
    return -1 if options.is_high_priority_stream else 0
