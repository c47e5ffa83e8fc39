"""torch.distributed.algorithms.model_averaging.averagers: means of parameters every so many steps."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.model_averaging import utils
from flambeau.distributed.world import world

__all__ = ["ModelAverager", "PeriodicModelAverager"]

explain_absent_names(globals(), "torch.distributed.algorithms.model_averaging.averagers")


class ModelAverager(ABC):
    """A counter of steps that averages parameters in some of them. process_group: default: all ranks."""

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = world().require_default() if process_group is None else process_group
        self.step = 0

    @abstractmethod
    def average_parameters(self, params: Iterable[Any]) -> None:
        """Average parameters, or groups of an optimizer. Training loops call it once per step."""
        raise NotImplementedError


class PeriodicModelAverager(ModelAverager):
    """An averager that averages in every `period`-th step from `warmup_steps` on.

    Raises:
        ValueError: For a period below 1, warm-up steps below 0.
    """

    def __init__(self, period: int, warmup_steps: int = 0, process_group: Any = None) -> None:
        super().__init__(process_group)
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        if period < 1:
            raise ValueError("Arg ``period`` must be a positive value.")
        if period == 1:
            warnings.warn(f"When period is 1, {TOO_OFTEN}", stacklevel=2)
        self.warmup_steps, self.period = warmup_steps, period

    def average_parameters(self, params: Iterable[Any]) -> None:
        late = self.step - self.warmup_steps
        if late >= 0 and late % self.period == 0:
            utils.average_parameters_or_parameter_groups(params, self.process_group)
        self.step += 1


TOO_OFTEN = (
    "no need to use model averaging because the communication cost of all-reducing parameters will be no less than the "
    "cost of all-reducing gradients by DistributedDataParallel in the backward pass. Therefore, only "
    "DistributedDataParallel should be used for this case."
)
