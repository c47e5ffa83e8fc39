"""torch.distributed.fsdp.api: the options of fully sharded data parallelism, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from flambeau.core.dtype import dtype
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.batchnorm import _BatchNorm
from flambeau.nn.modules.module import Module

__all__ = [
    "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig", "LocalOptimStateDictConfig",
    "LocalStateDictConfig", "MixedPrecision", "OptimStateDictConfig", "OptimStateKeyType",
    "ShardedOptimStateDictConfig", "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig",
    "StateDictSettings", "StateDictType",
]  # fmt: skip
explain_absent_names(globals(), "torch.distributed.fsdp.api")


class ShardingStrategy(Enum):
    """The tensors that are divided over the ranks."""

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()
    _HYBRID_SHARD_ZERO2 = auto()


class BackwardPrefetch(Enum):
    """The time at which the backward pass gathers the next parameters."""

    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


class StateDictType(Enum):
    """The form of a module's state dict."""

    FULL_STATE_DICT = auto()
    LOCAL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


class OptimStateKeyType(Enum):
    """The kind of keys of an optimizer's state dict."""

    PARAM_NAME = auto()
    PARAM_ID = auto()


@dataclass
class MixedPrecision:
    """The dtypes of parameters, of gradient sums and of buffers."""

    param_dtype: dtype | None = None
    reduce_dtype: dtype | None = None
    buffer_dtype: dtype | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: Sequence[type[Module]] = (_BatchNorm,)


@dataclass
class CPUOffload:
    """The place of parameters that are not in use."""

    offload_params: bool = False


@dataclass
class StateDictConfig:
    """The options of a state dict."""

    offload_to_cpu: bool = False


@dataclass
class FullStateDictConfig(StateDictConfig):
    """The options of a whole state dict."""

    rank0_only: bool = False


@dataclass
class LocalStateDictConfig(StateDictConfig):
    """The options of a rank's own state dict."""


@dataclass
class ShardedStateDictConfig(StateDictConfig):
    """The options of a divided state dict."""

    _use_dtensor: bool = False


@dataclass
class OptimStateDictConfig:
    """The options of an optimizer's state dict."""

    offload_to_cpu: bool = True


@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """The options of an optimizer's whole state dict."""

    rank0_only: bool = False


@dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """The options of an optimizer's state dict of one rank."""

    offload_to_cpu: bool = False


@dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """The options of an optimizer's divided state dict."""

    _use_dtensor: bool = False


@dataclass
class StateDictSettings:
    """The state dicts of a module and its optimizer."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig
