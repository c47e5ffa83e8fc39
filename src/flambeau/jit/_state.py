"""torch.jit._state: whether TorchScript is on, which it never is."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names


class EnabledProxy:
    """The switch of TorchScript, which is false as with `PYTORCH_JIT=0`."""

    enabled = False

    def __bool__(self) -> bool:
        return self.enabled


_enabled = EnabledProxy()


def disable() -> None:
    """Leave TorchScript off: `torch.jit.script` and `torch.jit.trace` return the Python code in any case."""


def enable() -> None:
    """Leave TorchScript off: a script that was on would compute the same."""


explain_absent_names(globals(), "torch.jit._state")
