"""torch.distributed._composable.checkpoint: modules that compute their activations again in backward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed._composable.contract import contract
from flambeau.distributed._composable_state import _State
from flambeau.nn.modules.module import Module
from flambeau.utils.checkpoint import open_frame

__all__ = ["checkpoint"]


class _CheckpointState(_State):
    """The state of a checkpointed module.

    Attributes:
        enable_hook: False while the module runs for a backward pass.
        open: What the module's forward pass has entered.
    """

    enable_hook = True

    def __init__(self) -> None:
        self.open = ExitStack()


@contextlib.contextmanager
def _no_hook(module: Module, user_ctx: AbstractContextManager[Any] | None = None) -> Iterator[None]:
    """Run a module without its checkpoint."""
    state = checkpoint.state(module)
    with user_ctx or nullcontext():
        before, state.enable_hook = state.enable_hook, False
        try:
            yield
        finally:
            state.enable_hook = before


@contract(_CheckpointState)
def checkpoint(
    module: Module,
    *,
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Module:
    """Checkpoint the activations of a module by hooks. Its structure and the names of its parameters do not change.

    Args:
        module: The module.
        use_reentrant: Must be False.
        preserve_rng_state: Restore random states for the second run.
        context_fn: Returns the context managers of the first and of the second run.
        determinism_check: "default" compares metadata of both runs, "none" compares nothing.
        debug: Add the operators of both runs to errors.
        early_stop: End the second run when all tensors are computed.

    Raises:
        NotImplementedError: If `use_reentrant` is True.
        ValueError: For another argument.
    """
    if use_reentrant:
        raise NotImplementedError(
            "use_reentrant=True is not supported in composable checkpoint. "
            "Please use torch.utils.checkpoint.checkpoint instead."
        )
    if kwargs:
        raise ValueError(f"Unexpected keyword arguments: {','.join(kwargs)}")
    state = checkpoint.state(module)

    def create_contexts() -> tuple[Any, Any]:
        first, second = context_fn() if context_fn else (nullcontext(), None)
        return first, _no_hook(module, second)

    def begin(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if state.enable_hook:
            frame = open_frame(
                module,
                args,
                kwargs,
                preserve_rng_state,
                create_contexts,
                determinism_check,
                debug,
                early_stop,
            )
            state.open.enter_context(frame)

    def end(module: Module, args: tuple[Any, ...], output: Any) -> None:
        if state.enable_hook:
            state.open.close()

    module.register_forward_pre_hook(begin, with_kwargs=True)
    module.register_forward_hook(end, prepend=True, always_call=True)
    return module


explain_absent_names(globals(), "torch.distributed._composable.checkpoint_activation")
