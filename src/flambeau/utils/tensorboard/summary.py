"""torch.utils.tensorboard.summary: records that loggers of libraries build by themselves."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary

from flambeau.core.public_names import explain_absent_names
from flambeau.utils.tensorboard import summaries

__all__ = ["hparams"]


def hparams(
    hparam_dict: dict[str, Any] | None = None,
    metric_dict: dict[str, Any] | None = None,
    hparam_domain_discrete: dict[str, list[Any]] | None = None,
) -> tuple[Any, Any, Any]:
    """Return the summaries of an experiment, of the start of a session and of its end.

    Args:
        hparam_dict: Name -> number, string, bool or tensor of one element.
        metric_dict: Name -> number.
        hparam_domain_discrete: Name of a hyperparameter -> its possible values.

    Raises:
        TypeError: If an argument is not a dict.
        ValueError: If a hyperparameter is of another type.
    """
    values = summaries.build_hparams(hparam_dict, metric_dict, hparam_domain_discrete)
    experiment, start, end = (Summary(value=[value]) for value in values)
    return experiment, start, end


explain_absent_names(globals(), "torch.utils.tensorboard.summary")
