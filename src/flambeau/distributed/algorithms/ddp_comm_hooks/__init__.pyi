# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.algorithms.ddp_comm_hooks."""


from typing import Any

import enum
from functools import partial
from typing import Any
from flambeau.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
def _register(model: Any, state: Any, hook: Any) -> None:
    ...
class DDPCommHookType(enum.Enum):
    ALLREDUCE = partial(_register, hook=default_hooks.allreduce_hook)
    FP16_COMPRESS = partial(_register, hook=default_hooks.fp16_compress_hook)
    BF16_COMPRESS = partial(_register, hook=default_hooks.bf16_compress_hook)
    POWER_SGD = partial(_register, hook=powerSGD_hook.powerSGD_hook)
    POWER_SGD_RANK2 = partial(lambda model, state, hook: model.register_comm_hook(powerSGD_hook.PowerSGDState(process_group=state, matrix_approximation_rank=2), hook), hook=powerSGD_hook.powerSGD_hook)
    BATCHED_POWER_SGD = partial(_register, hook=powerSGD_hook.batched_powerSGD_hook)
    BATCHED_POWER_SGD_RANK2 = partial(lambda model, state, hook: model.register_comm_hook(powerSGD_hook.PowerSGDState(process_group=state, matrix_approximation_rank=2), hook), hook=powerSGD_hook.batched_powerSGD_hook)
    NOOP = partial(_register, hook=debugging_hooks.noop_hook)
def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any=...) -> None:
    ...
from flambeau.distributed.algorithms.ddp_comm_hooks import debugging_hooks as debugging_hooks
from flambeau.distributed.algorithms.ddp_comm_hooks import default_hooks as default_hooks
from flambeau.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_localSGD_hook
from flambeau.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD_hook

