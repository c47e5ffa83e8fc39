"""The reducer's errors for unexpected backward passes, with PyTorch's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flambeau.distributed.debug import DebugLevel
from flambeau.distributed.world import world

NONE_UNUSED = (
    "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the "
    "forward pass. This flag results in an extra traversal of the autograd graph every iteration,  which can "
    "adversely affect performance. If your model indeed never has any unused parameters in the forward pass, consider "
    "turning this flag off. Note that this warning may be a false positive if your model has flow control causing "
    "later iterations to have unused parameters."
)
HIGHER_ORDER = (
    "Using DistributedDataParallel with create_graph=True  is not well-supported. The higher-order gradient will  not "
    "be synchronized across ranks, and backpropagation  through all_reduce operations will not occur. If you require  "
    "DDP to work with higher-order gradients for your use case,  please ping "
    "https://github.com/pytorch/pytorch/issues/63929"
)
STARTED = (
    "set_static_graph() should be called before training loop starts and after DistributedDataParallel is "
    "constructed."
)
_BASE = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates "
    "that "
)
_PARAMETERS = "your module has parameters that were not used in producing loss. "
_LOOK = (
    "You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
    "`torch.nn.parallel.DistributedDataParallel`, and by \n"
)
_LOOKED = (
    "Since `find_unused_parameters=True` is enabled, this likely  means that not all `forward` outputs participate in "
    "computing loss. You can fix this by "
)
_OUTPUTS = "making sure all `forward` function outputs participate in calculating loss. "
_LOST = (
    "\nIf you already have done the above, then the distributed data parallel module wasn't able to locate the output "
    "tensors in the return value of your module's `forward` function. Please include the loss function and the "
    "structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable)."
)
_CHANGED = (
    "your training graph has changed in this iteration, e.g., one parameter is used in first iteration, but then got "
    "unused in the second iteration. this is not compatible with static_graph set to True."
)
_TWICE = (
    "Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a "
    "module parameter outside the `forward` function. Please make sure model parameters are not shared across "
    "multiple concurrent forward-backward passes. or try to use _set_static_graph() as a workaround if this module "
    "graph does not change during training loop.2) Reused parameters in multiple reentrant backward passes. For "
    "example, if you use multiple `checkpoint` functions to wrap the same part of your model, it would result in the "
    "same set of parameters been used by different reentrant backward passes multiple times, and hence marking a "
    "variable ready multiple times. DDP does not support such use cases in default. You can try to use "
    "_set_static_graph() as a workaround if your module graph does not change over iterations."
)


def not_finished(
    rank: int, left: Sequence[int], names: Mapping[int, str], find_unused: bool, static: bool
) -> str:
    """Return the error text for a backward pass that lacks gradients; `left` are the missing parameters."""
    if static:
        return _BASE + _CHANGED + _missing(rank, left, names)
    fix = _LOOK if not find_unused else _LOOKED
    return _BASE + _PARAMETERS + fix + _OUTPUTS + _LOST + _missing(rank, left, names)


def _missing(rank: int, left: Sequence[int], names: Mapping[int, str]) -> str:
    text = ""
    if world().debug is not DebugLevel.OFF:
        text += (
            f"\nParameters which did not receive grad for rank {rank}: {', '.join(names[i] for i in left)}"
        )
    text += f"\nParameter indices which did not receive grad for rank {rank}: {' '.join(map(str, left))}"
    if world().debug is DebugLevel.OFF:
        text += (
            "\n In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to "
            "print out information about which particular parameters did not receive gradient on this rank as part of "
            "this error"
        )
    return text


def already_marked(index: int, names: Mapping[int, str]) -> str:
    """Return the error text for a parameter whose gradient arrived twice in one backward pass."""
    name = names.get(index)
    text = _TWICE + f"\nParameter at index {index}" + (f" with name {name}" if name else "")
    text += (
        " has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this "
        "particular parameter during this iteration."
    )
    if not name:
        text += (
            " You can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print "
            "parameter names for further debugging."
        )
    return text


UNUSED_BEFORE = (
    "Your training graph has changed in this iteration, e.g., one parameter is unused in first iteration, but then "
    "got used in the second iteration. this is not compatible with static_graph set to True."
)
