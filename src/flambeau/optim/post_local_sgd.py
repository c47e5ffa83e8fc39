"""`PostLocalSGDOptimizer`: an optimizer whose parameters are averaged over the ranks periodically.

It lies in this room because it is an optimizer; programs find it in `torch.distributed.optim`.
"""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.model_averaging.averagers import ModelAverager
from flambeau.optim.optimizer import Optimizer

__all__ = ["PostLocalSGDOptimizer"]

explain_absent_names(globals(), "torch.distributed.optim.post_localSGD_optimizer")


class PostLocalSGDOptimizer(Optimizer):
    """A wrapper of the optimizer `optim`; after each step `averager` averages the parameters if it is due.

    Source: Lin, Stich, Patel, Jaggi.
    """

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        self.optim = optim
        self.param_groups = optim.param_groups
        self.averager = averager

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optim.state

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, with the step of the averager."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore optimizer and step count. Warns if there is no step count, and starts at 0."""
        self.optim.load_state_dict(state_dict)
        self.param_groups = self.optim.param_groups
        if "step" not in state_dict:
            warnings.warn(
                "Loaded state dict does not contain a step counter for an averager. Setting step counter to 0.",
                stacklevel=2,
            )
        self.averager.step = state_dict.get("step", 0)

    def step(self) -> None:  # type: ignore[override]
        self.optim.step()
        self.averager.average_parameters(params=self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)
