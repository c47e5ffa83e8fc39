"""torch.distributed.checkpoint.stateful: the protocol of objects with a state."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from flambeau.core.public_names import explain_absent_names

__all__ = ["Stateful", "StatefulT"]


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored. `isinstance` compares the names of methods only."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state."""
        ...


StatefulT = TypeVar("StatefulT", bound=Stateful)

explain_absent_names(globals(), "torch.distributed.checkpoint.stateful")
