"""torch.distributed.algorithms.ddp_comm_hooks: communication hooks, which reduce or compress gradients."""

from __future__ import annotations

import enum
from functools import partial
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)

__all__ = ["DDPCommHookType", "register_ddp_comm_hook"]

explain_absent_names(globals(), "torch.distributed.algorithms.ddp_comm_hooks")


def _register(model: Any, state: Any, hook: Any) -> None:
    model.register_comm_hook(state, hook)


class DDPCommHookType(enum.Enum):
    """The communication hooks that `register_ddp_comm_hook` registers by name."""

    ALLREDUCE = partial(_register, hook=default_hooks.allreduce_hook)
    FP16_COMPRESS = partial(_register, hook=default_hooks.fp16_compress_hook)
    BF16_COMPRESS = partial(_register, hook=default_hooks.bf16_compress_hook)
    POWER_SGD = partial(_register, hook=powerSGD_hook.powerSGD_hook)
    POWER_SGD_RANK2 = partial(
        lambda model, state, hook: model.register_comm_hook(
            powerSGD_hook.PowerSGDState(process_group=state, matrix_approximation_rank=2), hook
        ),
        hook=powerSGD_hook.powerSGD_hook,
    )
    BATCHED_POWER_SGD = partial(_register, hook=powerSGD_hook.batched_powerSGD_hook)
    BATCHED_POWER_SGD_RANK2 = partial(
        lambda model, state, hook: model.register_comm_hook(
            powerSGD_hook.PowerSGDState(process_group=state, matrix_approximation_rank=2), hook
        ),
        hook=powerSGD_hook.batched_powerSGD_hook,
    )
    NOOP = partial(_register, hook=debugging_hooks.noop_hook)


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any = None) -> None:
    """Register the communication hook that `comm_hook_type` names on a DistributedDataParallel module.

    Args:
        state: The first argument of the hook.
    """
    comm_hook_type.value(model=model, state=state)
