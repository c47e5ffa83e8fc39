"""`parallel_apply`: several modules, each on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module
from flambeau.runtime import current, system
from flambeau.runtime.streams.guards import device
from flambeau.tape.mode import mode, recording

__all__ = ["parallel_apply"]

explain_absent_names(globals(), "torch.nn.parallel.parallel_apply")


def parallel_apply(
    modules: Sequence[Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Call each module with its arguments on its device and return the outputs. One thread makes all calls, in order.

    Launches are asynchronous, so the devices compute at the same time. A module that waits for its device (`item()`, a
    copy to pageable memory) delays the next one.

    Args:
        inputs: For each module its positional arguments, a tuple or list, or the only argument.
        kwargs_tup: For each module its keyword arguments.
        devices: torch.device, str, int or None (the current one); default: the current one for all.

    Raises:
        AssertionError: If the lists have different lengths, or there is no GPU.
        Exception: If a module raises: its exception type, with the module's number and device before the message. Later
            modules do not run.
    """
    keywords = [{} for _ in modules] if kwargs_tup is None else kwargs_tup
    places = [None] * len(modules) if devices is None else devices
    for what, given in (("inputs", inputs), ("kwargs_tup", keywords), ("devices", places)):
        if len(given) != len(modules):
            raise AssertionError(
                f"The number of modules {len(modules)} is not equal to the number of {what} {len(given)}"
            )
    if not system.is_available():
        raise AssertionError("No available accelerator found.")
    indices = [current.index_of(place, optional=True) for place in places]
    return [
        _apply_module(i, module, given, named, index)
        for i, (module, given, named, index) in enumerate(
            zip(modules, inputs, keywords, indices, strict=True)
        )
    ]


def _apply_module(number: int, module: Module, given: Any, keywords: dict[str, Any], index: int) -> Any:
    """Return one module's output. The thread's device and grad mode are restored afterwards."""
    arguments = given if isinstance(given, tuple | list) else (given,)
    try:
        with device(index), recording(mode.recording):
            return module(*arguments, **keywords)
    except Exception:
        caught = ExceptionWrapper(where=f"in replica {number} on device {index}")
    caught.reraise()
