"""Hooks of modules: their handles, the hooks of all modules, and the call of a module that has hooks.

Owner of the hooks of all modules (`register_module_*`).
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flambeau.core.errors import RaceError
from flambeau.core.handle import RemovableHandle
from flambeau.tape.autograd_node import Node
from flambeau.tape.mode import mode, recording
from flambeau.tensor.autograd.autograd_meta import edge_of
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import CUSTOM, Tensor

if TYPE_CHECKING:
    from flambeau.nn.modules.module import Module

Hook = Callable[..., Any]


class _Everywhere:
    """The hooks of all modules."""

    def __init__(self) -> None:
        self.forward_pre: dict[int, Hook] = OrderedDict()
        self.forward: dict[int, Hook] = OrderedDict()
        self.forward_with_kwargs: dict[int, bool] = OrderedDict()
        self.forward_always_called: dict[int, bool] = OrderedDict()
        self.backward_pre: dict[int, Hook] = OrderedDict()
        self.backward: dict[int, Hook] = OrderedDict()
        self.backward_is_full: bool | None = None
        self.of_parameters: dict[int, Hook] = OrderedDict()
        self.of_buffers: dict[int, Hook] = OrderedDict()
        self.of_modules: dict[int, Hook] = OrderedDict()
        # Each call of a module checks for these hooks.
        self.around_calls = (self.forward, self.forward_pre, self.backward, self.backward_pre)


everywhere = _Everywhere()


# -- registering ----------------------------------------------------------------------------------------


def put(hooks: Any, hook: Hook, *flags: Any, prepend: bool = False) -> RemovableHandle:
    """Register a hook, and add its id to each dict of `flags`."""
    handle = RemovableHandle(hooks, extra_dict=list(flags))
    hooks[handle.id] = hook
    for flag in flags:
        flag[handle.id] = True
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, parameter)` when any module registers a parameter; its result replaces the parameter."""
    return put(everywhere.of_parameters, hook)


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, buffer)` when any module registers a buffer. If the hook returns a value, it replaces
    the buffer.
    """
    return put(everywhere.of_buffers, hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, submodule)` when any module registers a submodule; its result replaces the submodule."""
    return put(everywhere.of_modules, hook)


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, args)` before each forward of any module; its result replaces the arguments."""
    return put(everywhere.forward_pre, hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args, output)` after each forward of any module; its result replaces the output.

    With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it also runs after an exception.
    """
    flags = [everywhere.forward_with_kwargs] * with_kwargs + [everywhere.forward_always_called] * always_call
    return put(everywhere.forward, hook, *flags)


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """Register a hook like `register_module_full_backward_hook` in its older form."""
    return _register_backward_everywhere(hook, full=False)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_output)` before the backward of any module."""
    return put(everywhere.backward_pre, hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` when any module's gradients of inputs are computed."""
    return _register_backward_everywhere(hook, full=True)


def _register_backward_everywhere(hook: Hook, full: bool) -> RemovableHandle:
    if everywhere.backward_is_full is (not full):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a "
            "global Module hook. Please use only one of them."
        )
    everywhere.backward_is_full = full
    return put(everywhere.backward, hook)


# -- a call with hooks ----------------------------------------------------------------------------------


def call_with_hooks(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return `module(*args, **kwargs)`, with the module's and the global hooks."""
    called: set[int] = set()
    try:
        args, kwargs = _before(module, args, kwargs)
        backward = _backward_of(module)
        if backward is not None:
            args = backward.watch_inputs(args)
        result = module.forward(*args, **kwargs)
        for key, hook, with_kwargs, _ in _forward_hooks(module):
            called.add(key)
            changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if changed is None else changed
        if backward is not None:
            if not isinstance(result, (Tensor, tuple)):
                warnings.warn(
                    "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors "
                    f"but received {type(result)}",
                    stacklevel=3,
                )
            result = backward.watch_outputs(result)
        _add_plain_backward_hooks(module, args, result)
        return result
    except Exception:
        _call_those_always_called(module, args, kwargs, called)
        raise


def _before(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments after the pre-hooks have changed them."""
    for key, hook in (*everywhere.forward_pre.items(), *module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            both = hook(module, args, kwargs)
            if both is None:
                continue
            if not (isinstance(both, tuple) and len(both) == 2):
                raise RuntimeError(
                    f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {both}."
                )
            args, kwargs = both
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs


def _forward_hooks(module: Module) -> Iterator[tuple[int, Hook, bool, bool]]:
    """Yield (id, hook, takes keyword arguments, is also called after an exception)."""
    for key, hook in tuple(everywhere.forward.items()):
        yield key, hook, key in everywhere.forward_with_kwargs, key in everywhere.forward_always_called
    for key, hook in tuple(module._forward_hooks.items()):
        yield (
            key,
            hook,
            key in module._forward_hooks_with_kwargs,
            key in module._forward_hooks_always_called,
        )


def _call_those_always_called(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], called: set[int]
) -> None:
    """Call the hooks that run even after an exception, with None as output. Their exceptions become warnings."""
    for key, hook, with_kwargs, always in _forward_hooks(module):
        if not always or key in called:
            continue
        try:
            if with_kwargs:
                hook(module, args, kwargs, None)
            else:
                hook(module, args, None)
        except RaceError:
            raise
        except Exception as error:
            whose = "global module" if key in everywhere.forward else "module"
            warnings.warn(
                f"{whose} forward hook with ``always_call=True`` raised an exception that was silenced as another "
                f"error was raised in forward: {error}",
                stacklevel=4,
            )


# -- full backward hooks --------------------------------------------------------------------------------


def _backward_of(module: Module) -> _HookedCall | None:
    full = [*everywhere.backward.values()] if everywhere.backward_is_full else []
    if module._is_full_backward_hook:
        full += module._backward_hooks.values()
    before = [*everywhere.backward_pre.values(), *module._backward_pre_hooks.values()]
    return _HookedCall(module, full, before) if full or before else None


class BackwardHookFunctionBackward(Node):
    """The node that passes gradients on unchanged and marks where a module begins or ends in the autograd graph."""

    __slots__ = ()

    runs_without_gradients = True

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        return [
            creation.zeros(meta.shape, dtype=meta.dtype, device=meta.device) if grad is None else grad
            for grad, meta in zip(grads, self.outputs, strict=True)
        ]


class _HookedCall:
    """One call of a module that has backward hooks.

    Backward first reaches the node around the outputs, with their gradients. After the node around the inputs has run,
    the inputs' gradients are known and the hooks are called.
    """

    def __init__(self, module: Module, hooks: Sequence[Hook], before: Sequence[Hook]) -> None:
        self._module = module
        self._hooks = hooks
        self._before = before
        self._inputs: tuple[int, list[int]] | None = None  # how many there are, and which are tensors
        self._input_count = -1
        self._grad_outputs: tuple[Any, ...] | None = None

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with an autograd node around them."""
        self._input_count = len(args)
        args, places, node = _mark(args)
        if node is not None:
            self._inputs = (len(args), places)
            node.register_hook(self._inputs_done)
        return args

    def watch_outputs(self, result: Any) -> Any:
        """Return the result, with a node around its tensors."""
        outputs = result if isinstance(result, tuple) else (result,)
        count = len(outputs)
        marked, places, node = _mark(outputs)
        if node is not None:
            node.register_prehook(lambda grads: self._outputs_known(grads, count, places))
        return marked if isinstance(result, tuple) else marked[0]

    def _outputs_known(self, grads: Sequence[Any], count: int, places: list[int]) -> tuple[Any, ...]:
        """Run the pre-hooks, which may change the gradients of the outputs, before the node around the outputs runs."""
        known = _spread(grads, count, places)
        for hook in self._before:
            changed = hook(self._module, known)
            if changed is None:
                continue
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(changed) != count:
                raise RuntimeError(
                    "Backward pre hook returned an invalid number of grad_output, "
                    f"got {len(changed)}, but expected {count}"
                )
            known = changed
        if self._inputs is None:
            self._finish_without_inputs(known)
        else:
            self._grad_outputs = known
        return tuple([known[i] for i in places])

    def _finish_without_inputs(self, grad_outputs: tuple[Any, ...]) -> None:
        """Run the hooks now: no input requires a gradient, so no node marks the end of the module's backward."""
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs "
            "require gradients. See https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
            "#torch.nn.Module.register_full_backward_hook for more details.",
            stacklevel=6,
        )
        none = (None,) * self._input_count
        for hook in self._hooks:
            changed = hook(self._module, none, grad_outputs)
            if changed is not None and not (isinstance(changed, tuple) and all(x is None for x in changed)):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or None "
                    "for all gradients."
                )

    def _inputs_done(self, grad_inputs: Sequence[Any], _: Any) -> tuple[Any, ...] | None:
        if self._grad_outputs is None or self._inputs is None:
            return None  # the inputs are used elsewhere too, or no output needed a gradient
        count, places = self._inputs
        known = _spread(grad_inputs, count, places)
        for hook in self._hooks:
            changed = hook(self._module, known, self._grad_outputs)
            if changed is None:
                continue
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(changed) != count:
                raise RuntimeError(
                    f"Backward hook returned an invalid number of grad_input, got {len(changed)}, but expected {count}"
                )
            known = changed
        self._grad_outputs = None
        return tuple([known[i] for i in places])


def _mark(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int], Any]:
    """Return the values with one autograd node around all tensors, the tensors' positions, and the node.

    The node is None if no tensor requires a gradient.
    """
    places = [i for i, x in enumerate(values) if isinstance(x, Tensor)]
    if not (mode.recording and any(values[i].requires_grad for i in places)):
        return values, places, None
    tensors = [values[i] for i in places]
    node = BackwardHookFunctionBackward([edge_of(t) for t in tensors], [t.meta for t in tensors])
    changed: Any = list(values)
    for number, i in enumerate(places):
        if values[i].requires_grad:
            changed[i] = _output_of(node, number, values[i])
    return (type(values)(*changed) if hasattr(values, "_fields") else tuple(changed)), places, node


def _output_of(node: Node, number: int, t: Tensor) -> Tensor:
    """Return `t` as an output of the node. It must not be changed in place, since the tensor that it aliases would not
    change.
    """
    with recording(False):
        shown: Any = t.view_as(t)
    shown.history.node, shown.history.index, shown.history.restriction = node, number, CUSTOM
    made: Tensor = shown
    return made


def _spread(grads: Sequence[Any], count: int, places: list[int]) -> tuple[Any, ...]:
    """Return the gradients at their places among `count`, None elsewhere."""
    spread: list[Any] = [None] * count
    for i, grad in zip(places, grads, strict=True):
        spread[i] = grad
    return tuple(spread)


# -- the older backward hooks ---------------------------------------------------------------------------


def _add_plain_backward_hooks(module: Module, args: tuple[Any, ...], result: Any) -> None:
    """Register hooks on the node that computed the output. They receive that node's gradients, not the module's."""
    plain = [*everywhere.backward.values()] if everywhere.backward_is_full is False else []
    if module._is_full_backward_hook is False:
        plain += module._backward_hooks.values()
    if not plain:
        return
    first = result
    while not isinstance(first, Tensor):
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    if first.grad_fn is None:
        return
    for hook in plain:
        first.grad_fn.register_hook(_bind_module(hook, module))
    _warn_of_what_plain_hooks_miss(args, result, first.grad_fn)


def _bind_module(hook: Hook, module: Module) -> Hook:
    return lambda grad_inputs, grad_outputs: hook(module, grad_inputs, grad_outputs)


def _warn_of_what_plain_hooks_miss(inputs: tuple[Any, ...], result: Any, grad_fn: Any) -> None:
    outputs = result if isinstance(result, tuple) else (result,)
    nodes = {x.grad_fn for x in outputs if isinstance(x, Tensor) and x.grad_fn is not None}
    if not all(isinstance(x, Tensor) for x in outputs):
        text = (
            "Using non-full backward hooks on a Module that does not return a single Tensor or a tuple of Tensors is "
            "deprecated and will be removed in future versions. This hook will be missing some of the grad_output. "
            "Please use register_full_backward_hook to get the documented behavior."
        )
    elif not all(isinstance(x, Tensor) for x in inputs):
        text = (
            "Using non-full backward hooks on a Module that does not take as input a single Tensor or a tuple of "
            "Tensors is deprecated and will be removed in future versions. This hook will be missing some of the "
            "grad_input. Please use register_full_backward_hook to get the documented behavior."
        )
    elif len(nodes) > 1:
        text = (
            "Using a non-full backward hook when outputs are generated by different autograd Nodes is deprecated and "
            "will be removed in future versions. This hook will be missing some grad_output. Please use "
            "register_full_backward_hook to get the documented behavior."
        )
    elif {node for node, _ in grad_fn.next_functions} != {x.grad_fn for x in inputs} - {None}:
        text = (
            "Using a non-full backward hook when the forward contains multiple autograd Nodes is deprecated and will "
            "be removed in future versions. This hook will be missing some grad_input. Please use "
            "register_full_backward_hook to get the documented behavior."
        )
    else:
        return
    warnings.warn(text, FutureWarning, stacklevel=5)
