"""torch.distributed.algorithms.model_averaging.hierarchical_model_averager: near ranks often, all ranks seldom."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.model_averaging import utils
from flambeau.distributed.algorithms.model_averaging.averagers import TOO_OFTEN, ModelAverager
from flambeau.distributed.setup import new_subgroups

__all__ = ["HierarchicalModelAverager"]

explain_absent_names(globals(), "torch.distributed.algorithms.model_averaging.hierarchical_model_averager")


class HierarchicalModelAverager(ModelAverager):
    """An averager over groups of several sizes, each with its own period. All ranks must create it.

    In a step that is a multiple of several periods, the largest of them counts.

    Args:
        period_group_size_dict: Period -> size of groups. Both grow; the last size is that of the whole group.
        warmup_steps: The number of steps before the first average.

    Raises:
        ValueError: If the dict is empty, a period is below 1, the last size is not the group's, or `warmup_steps` is
            negative.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int] | None = None,
        warmup_steps: int = 0,
        process_group: Any = None,
    ) -> None:
        super().__init__(process_group)
        if not period_group_size_dict:
            raise ValueError("Arg ``period_group_size_dict`` must not be empty.")
        self._periods = list(period_group_size_dict)
        sizes, whole = list(period_group_size_dict.values()), self.process_group.size()
        if self._periods[0] <= 0:
            raise ValueError("The minimum period in arg ``period_group_size_dict`` must be a positive value.")
        if self._periods[-1] == 1:
            warnings.warn(
                f"When the maximum period in arg ``period_group_size_dict`` is 1, {TOO_OFTEN}", stacklevel=2
            )
        if sizes[-1] != whole:
            raise ValueError(
                f"The last value in arg ``period_group_size_dict`` {sizes[-1]} must be equal to the size of arg "
                f"``process_group`` {whole}."
            )
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        self.period_process_group_dict = OrderedDict(
            (period, self.process_group if size == whole else new_subgroups(size, self.process_group)[0])
            for period, size in period_group_size_dict.items()
        )
        self.warmup_steps = warmup_steps

    def _find_process_group(self) -> Any:
        """Return the group that averages in this step; None if no group does."""
        for period in reversed(self._periods):
            if self.step % period == 0:
                return self.period_process_group_dict[period]
        return None

    def average_parameters(self, params: Iterable[Any]) -> None:
        group = self._find_process_group() if self.step >= self.warmup_steps else None
        if group is not None:
            utils.average_parameters_or_parameter_groups(params, group)
        self.step += 1
