"""Selective checkpoints: results of chosen operators are kept, all others are computed again in backward."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from typing import Any

from flambeau.tensor.tensor import Tensor
from flambeau.utils._python_dispatch import TorchDispatchMode
from flambeau.utils._pytree import tree_map


class CheckpointPolicy(enum.Enum):
    """The ways in which a selective checkpoint treats the result of an operator."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


class SelectiveCheckpointContext:
    """The first argument of a policy.

    Attributes:
        is_recompute: False: a policy is called in forward only.
        op_output: The result of the operator.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


_COMPUTE_AGAIN, _USED = object(), object()
_ADVICE = (
    "This can happen if the operations in the checkpointed region are nondeterministic or depend on global state that "
    "changed between forward and backward."
)


def _is_ignored(func: Any) -> bool:
    """Return True for `detach`, which forward and recomputation call a different number of times."""
    return str(func) == "aten.detach.default"


class _Kept:
    """A kept value, with its version if it is a tensor."""

    def __init__(self, value: Any) -> None:
        self._value = value.detach() if isinstance(value, Tensor) else value
        self._version = self._value._version if isinstance(value, Tensor) else None

    def take(self, may_change: bool) -> Any:
        """Return the value.

        Raises:
            RuntimeError: If it was changed in place, unless it may be.
        """
        if not may_change and self._version is not None and self._value._version != self._version:
            raise RuntimeError("Tensor cached during selective activation checkpoint has been mutated")
        return self._value


class _CountingMode(TorchDispatchMode):
    """A mode that numbers the calls of each operator.

    Attributes:
        results: (operator, number of the call) -> what is kept of the result.
    """

    def __init__(self, results: dict[tuple[Any, int], Any]) -> None:
        self.results = results
        self._calls: Counter[Any] = Counter()

    def __enter__(self) -> Any:
        self._calls.clear()
        return super().__enter__()

    def key_of(self, func: Any) -> tuple[Any, int]:
        """Count a call of an operator, and return its key."""
        self._calls[func] += 1
        return func, self._calls[func] - 1


class _CachingTorchDispatchMode(_CountingMode):
    """The mode of forward, which keeps results."""

    def __init__(self, policy_fn: Callable[..., Any], results: dict[tuple[Any, int], Any]) -> None:
        super().__init__(results)
        self._policy = policy_fn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if _is_ignored(func):
            return result
        key = self.key_of(func)
        context = SelectiveCheckpointContext(is_recompute=False, op_output=result)
        policy = self._policy(context, func, *args, **kwargs)
        if policy in (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD):
            raise NotImplementedError(
                f"create_selective_checkpoint_contexts: Flambeau has no {policy.name}. Return MUST_SAVE, or use "
                "torch.autograd.graph.save_on_cpu around the call"
            )
        saves = policy in (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
        self.results[key] = tree_map(_Kept, result) if saves else _COMPUTE_AGAIN
        return result


class _CachedTorchDispatchMode(_CountingMode):
    """The mode of the recomputation, which returns kept results."""

    def __init__(self, results: dict[tuple[Any, int], Any], may_change: bool) -> None:
        super().__init__(results)
        self._may_change = may_change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_ignored(func):
            return func(*args, **(kwargs or {}))
        key = self.key_of(func)
        if key not in self.results:
            raise RuntimeError(
                f"{func} invocation index {key[1]} encountered during backward but not found in storage. {_ADVICE}"
            )
        kept = self.results[key]
        if kept is _COMPUTE_AGAIN:
            return func(*args, **(kwargs or {}))
        if kept is _USED:
            raise RuntimeError(
                "Trying to backward an extra time. You are only allowed to backward once on any region computed under "
                "selective activation checkpoint."
            )
        self.results[key] = _USED
        return tree_map(lambda each: each.take(self._may_change), kept)


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Any, allow_cache_entry_mutation: bool = False
) -> tuple[Any, Any]:
    """Return the contexts of a checkpoint that keeps the results of some operators: its `context_fn`.

    Args:
        policy_fn_or_list: `policy(context, operator, *args, **kwargs)`, which returns a `CheckpointPolicy`; or the list
            of the operators to keep, such as `torch.ops.aten.mm.default`.
        allow_cache_entry_mutation: True if a kept result may be changed in place.

    Raises:
        ValueError: If the list contains something else than an overload.
        TypeError: If the argument is neither a function nor a list.

    Source: `torch.utils.checkpoint.create_selective_checkpoint_contexts`.
    """
    policy = policy_fn_or_list
    if isinstance(policy_fn_or_list, list):
        policy = _policy_of_list(policy_fn_or_list)
    elif not callable(policy_fn_or_list):
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    results: dict[tuple[Any, int], Any] = {}
    return (
        _CachingTorchDispatchMode(policy, results),
        _CachedTorchDispatchMode(results, allow_cache_entry_mutation),
    )


def _policy_of_list(operators: list[Any]) -> Callable[..., CheckpointPolicy]:
    for each in operators:
        if not hasattr(each, "_overloadpacket"):
            advice = ""
            if hasattr(each, "overloads"):
                advice = (
                    "Please update the OpOverloadPacket to a specific OpOverload.For example, if you have "
                    "`torch.ops.aten.mm`, change it to `torch.ops.aten.mm.default`."
                )
            raise ValueError(
                f"Expected op in `op_list` to be an OpOverload but got: {each} of type {type(each)}. {advice}"
            )

    def policy(context: SelectiveCheckpointContext, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if func in operators else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
