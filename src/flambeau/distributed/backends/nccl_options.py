"""`ProcessGroupNCCL.Options`: the options that `pg_options` of GPU groups may contain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.distributed.constants import default_pg_nccl_timeout


class _Config:
    """The settings of an NCCL communicator. Setting one raises: NCCL uses its defaults and environment variables."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise NotSupportedError(
            f"ProcessGroupNCCL.Options.config.{name}: Flambeau's communicators have NCCL's own defaults"
        )


class ProcessGroupNCCL:
    """The namespace of `ProcessGroupNCCL.Options`. Use `init_process_group` and `new_group` to create groups."""

    __module__ = "flambeau.distributed"

    class Options:
        """The options of the "nccl" backend.

        The group's `timeout` argument limits operations, as in PyTorch; `_timeout` has no effect.

        Attributes:
            is_high_priority_stream: Give the group's streams a higher priority.
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
        AssertionError: If `options` is not `ProcessGroupNCCL.Options`.
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
