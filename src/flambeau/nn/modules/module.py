"""`Module`: the base of all layers, losses and models. Parameters, buffers and submodules register by assignment."""

from __future__ import annotations

import builtins
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

from flambeau.core.errors import NO_META_DATA
from flambeau.core.handle import RemovableHandle
from flambeau.nn.modules.module_hooks import (
    call_with_hooks,
    everywhere,
    put,
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from flambeau.nn.modules.state import EXTRA as _EXTRA_STATE_KEY_SUFFIX  # noqa: F401
from flambeau.nn.modules.state import Stateful, _IncompatibleKeys
from flambeau.nn.modules.utils import typename
from flambeau.nn.parameter import Buffer, Parameter, is_lazy
from flambeau.runtime.hooks import host_work
from flambeau.tape.mode import recording
from flambeau.tensor.exchange.transfer import to_arguments
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

__all__ = [
    "Module", "_IncompatibleKeys", "register_module_backward_hook", "register_module_buffer_registration_hook",
    "register_module_forward_hook", "register_module_forward_pre_hook", "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook", "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]  # fmt: skip

# Their names in PyTorch, which libraries read.
_global_backward_hooks, _global_backward_pre_hooks = everywhere.backward, everywhere.backward_pre
_global_forward_hooks, _global_forward_pre_hooks = everywhere.forward, everywhere.forward_pre
_global_forward_hooks_with_kwargs = everywhere.forward_with_kwargs
_global_forward_hooks_always_called = everywhere.forward_always_called
_global_buffer_registration_hooks = everywhere.of_buffers
_global_module_registration_hooks = everywhere.of_modules
_global_parameter_registration_hooks = everywhere.of_parameters

_EMPTY_HOOKS = (
    "_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class Module(Stateful):
    """The base of all neural network modules. A subclass creates its parts in `__init__` and uses them in `forward`.

    Parameters, tensors registered as buffers, and modules that are assigned as attributes are listed by `parameters()`,
    `buffers()` and `modules()`, moved by `to()` and saved by `state_dict()`.
    """

    dump_patches: bool = False
    call_super_init: bool = False
    _compiled_call_impl: Callable[..., Any] | None = None

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]
    _is_full_backward_hook: bool | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self.call_super_init is False and kwargs:
            raise TypeError(
                f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'"
            )
        if self.call_super_init is False and args:
            raise TypeError(
                f"{type(self).__name__}.__init__() takes 1 positional argument but {len(args) + 1} were given"
            )
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _non_persistent_buffers_set=set(),
            _is_full_backward_hook=None,
            **{name: OrderedDict() for name in _EMPTY_HOOKS},
        )
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    if TYPE_CHECKING:  # subclasses define it with other parameters
        forward: Callable[..., Any]
    else:

        def forward(self, *input: Any) -> Any:
            """Compute the module's result. Every subclass defines this; call the module itself, so that hooks run."""
            raise NotImplementedError(
                f'Module [{type(self).__name__}] is missing the required "forward" function'
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        if host_work.charge is not None:
            _charge_call(host_work.charge, args)
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or any(everywhere.around_calls)
        ):
            return call_with_hooks(self, args, kwargs)
        return self.forward(*args, **kwargs)

    _wrapped_call_impl = __call__

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module without what `compile` made of it."""
        if host_work.charge is not None:
            _charge_call(host_work.charge, args)
        return call_with_hooks(self, args, kwargs)

    # -- registering ------------------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not a parameter. Unless `persistent`, the state dict lacks it.

        Raises:
            KeyError: If a name that is taken, empty or has a dot.
            TypeError: If the value is not a tensor.
        """
        self._check_initialized("_buffers", "buffer")
        self._check_name(name, "buffer", self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{typename(tensor)}' object to buffer '{name}' (torch Tensor or None required)"
            )
        self._buffers[name] = _through(everywhere.of_buffers, self, name, tensor)
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter.

        Raises:
            KeyError: If a name that is taken, empty or has a dot.
            TypeError: If there is no Parameter.
            ValueError: If the value is not a leaf.
        """
        self._check_initialized("_parameters", "parameter")
        self._check_name(name, "parameter", self._parameters)
        if param is None:
            self._parameters[name] = None
            return
        if not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{typename(param)}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        if param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. "
                f"To express '{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = _through(everywhere.of_parameters, self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule.

        Raises:
            KeyError: If a name that is taken, empty or has a dot.
            TypeError: If the value is not a Module.
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{typename(module)} is not a Module subclass")
        self._check_name(name, "module", self._modules)
        self._modules[name] = _through(everywhere.of_modules, self, name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """Call `add_module`."""
        self.add_module(name, module)

    def _check_initialized(self, kind: str, what: str) -> None:
        if kind not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")

    def _check_name(self, name: Any, what: str, own: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {typename(name)}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."' + (f", got: {name}" if what == "module" else ""))
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in own:
            raise KeyError(f"attribute '{name}' already exists")

    # -- attributes -------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind in attributes and name in attributes[kind]:
                return attributes[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._check_initialized("_parameters", "parameters")
            self._forget(name, self.__dict__, self._buffers, self._modules)
            self.register_parameter(name, value)
        elif name in self.__dict__.get("_parameters", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as parameter '{name}' (torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
        elif isinstance(value, Module):
            self._check_initialized("_modules", "module")
            self._forget(name, self.__dict__, self._parameters, self._buffers)
            self._modules[name] = _through(everywhere.of_modules, self, name, value)
        elif name in self.__dict__.get("_modules", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            self._modules[name] = _through(everywhere.of_modules, self, name, None)
        elif isinstance(value, Buffer) or name in self.__dict__.get("_buffers", ()):
            self._set_buffer(name, value)
        else:
            object.__setattr__(self, name, value)

    def _set_buffer(self, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"cannot assign '{typename(value)}' as buffer '{name}' "
                "(torch.nn.Buffer, torch.Tensor or None expected)"
            )
        marked = isinstance(value, Buffer)
        persistent = value.persistent if marked else name not in self._non_persistent_buffers_set
        self.register_buffer(name, value, persistent)

    def _forget(self, name: str, *places: dict[str, Any]) -> None:
        for place in places:
            place.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __delattr__(self, name: str) -> None:
        for own in (self._parameters, self._buffers, self._modules):
            if name in own:
                del own[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers}
        return sorted([n for n in names if not n[:1].isdigit()])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_compiled_call_impl", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _EMPTY_HOOKS:
            self.__dict__.setdefault(name, OrderedDict())
        self.__dict__.setdefault("_non_persistent_buffers_set", set())
        self.__dict__.setdefault("_is_full_backward_hook", None)

    # -- by path ----------------------------------------------------------------------------------------

    def get_submodule(self, target: str) -> Module:
        """Return the submodule of a dotted path.

        Raises:
            AttributeError: If there is none.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        found: Module = module
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace the submodule at a dotted path. With `strict` it must exist already.

        Raises:
            ValueError: If the path is empty, or `module` is not a Module.
            AttributeError: If a part of the path does not exist.
        """
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter of a dotted path.

        Raises:
            AttributeError: If there is none.
        """
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        param = getattr(module, name)
        if not isinstance(param, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return param

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer of a dotted path.

        Raises:
            AttributeError: If there is none.
        """
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        buffer: Any = module._buffers[name]
        return buffer

    # -- going through it -------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it with their dotted names; each once, unless `remove_duplicate` is False."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(
                    memo, f"{prefix}.{name}" if prefix else name, remove_duplicate
                )

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """Yield this module and all of its submodules, recursively."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield name and module of each direct submodule; duplicates only once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self,
        get_members_fn: Callable[[Module], Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        memo = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in get_members_fn(module):
                if value is None or value in memo:
                    continue
                if remove_duplicate:
                    memo.add(value)
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), with `recurse` for submodules too. Each parameter appears once."""
        return self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, in the form that optimizers accept."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (dotted name, buffer), with `recurse` for submodules too. Each buffer appears once."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # -- changing all of it -----------------------------------------------------------------------------

    def apply(self, fn: Callable[[Module], None]) -> Any:
        """Call `fn` with each submodule, then with this module. Returns the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Replace each parameter's data, gradient and buffer by `fn` of it. Parameters remain the same objects."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        with recording(False):
            for param in self._parameters.values():
                if param is None:
                    continue
                grad = param.grad
                param.data = fn(param.data)
                if grad is not None:
                    grad.data = fn(grad.data)
            for name, buffer in self._buffers.items():
                if is_lazy(buffer):
                    buffer.data = fn(buffer.data)
                elif buffer is not None:
                    self._buffers[name] = fn(buffer)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move parameters and buffers in place: `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`. Returns
        itself.

        A dtype (floating-point or complex) applies only to floating-point and complex tensors, `memory_format` only to
        tensors of 4 and 5 dimensions. With `non_blocking`, the host does not wait for copies from pinned memory.
        """
        device, dtype, non_blocking, _, form = to_arguments(args, kwargs)
        if dtype is not None:
            if not (dtype.is_floating_point or dtype.is_complex):
                raise TypeError(
                    f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}"
                )
            if dtype.is_complex:
                warnings.warn(
                    "Complex modules are a new feature under active development whose design may change, and some "
                    "modules might not work as expected when using complex tensors as parameters or buffers. Please "
                    "file an issue at https://github.com/pytorch/pytorch/issues/new?template=bug-report.yml if a "
                    "complex module does not work as expected.",
                    stacklevel=2,
                )

        def move(t: Tensor) -> Any:
            kind = dtype if t.dtype.is_floating_point or t.dtype.is_complex else None
            if form is not None and t.dim() in (4, 5):
                return t.to(device=device, dtype=kind, non_blocking=non_blocking, memory_format=form)
            return t.to(device=device, dtype=kind, non_blocking=non_blocking)

        if device is None or device.type == "meta":
            return self._apply(move)
        try:
            return self._apply(move)
        except NotImplementedError as error:
            if str(error) != NO_META_DATA:
                raise
            raise NotImplementedError(
                f"{error} Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module "
                "from meta to a different device."
            ) from None

    def cuda(self, device: Any = None) -> Any:
        """Move parameters and buffers to a CUDA device (the current one). Returns the module."""
        return self._apply(lambda t: t.cuda(device))

    def cpu(self) -> Any:
        """Move parameters and buffers to the CPU. Returns the module."""
        return self._apply(lambda t: t.cpu())

    def type(self, dst_type: Any) -> Any:
        """Cast all parameters and buffers. Returns the module."""
        return self._apply(lambda t: t.type(dst_type))

    def float(self) -> Any:
        """Cast floating-point parameters and buffers to float32. Returns the module."""
        return self._apply(lambda t: t.float() if t.is_floating_point() else t)

    def double(self) -> Any:
        """Cast floating-point parameters and buffers to float64. Returns the module."""
        return self._apply(lambda t: t.double() if t.is_floating_point() else t)

    def half(self) -> Any:
        """Cast floating-point parameters and buffers to float16. Returns the module."""
        return self._apply(lambda t: t.half() if t.is_floating_point() else t)

    def bfloat16(self) -> Any:
        """Cast floating-point parameters and buffers to bfloat16. Returns the module."""
        return self._apply(lambda t: t.bfloat16() if t.is_floating_point() else t)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Move parameters and buffers to a device without their values. Returns the module."""
        return self._apply(lambda t: creation.empty_like(t, device=device), recurse)

    def share_memory(self) -> Any:
        """Move parameters, their gradients and buffers to memory that processes share. Returns the module."""
        parameters = list(self.parameters())
        for t in (*parameters, *[p.grad for p in parameters if p.grad is not None], *self.buffers()):
            t.share_memory_()  # the tensors themselves: each alone with its memory is found the fastest
        return self

    def train(self, mode: bool = True) -> Any:
        """Set the training mode of this module and all its submodules. Returns the module."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Any:
        """Call `train(False)`. Returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set `requires_grad` of all parameters. Returns the module."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or to zero."""
        if getattr(self, "_is_replica", False):
            warnings.warn(
                "Calling .zero_grad() from a module created with nn.DataParallel() has no effect. The parameters are "
                "copied (in a differentiable manner) from the original module. This means they are not leaf nodes in "
                "autograd and so don't accumulate gradients. If you need gradients in your forward method, consider "
                "using autograd.grad instead.",
                stacklevel=2,
            )
        for param in self.parameters():
            if param.grad is None:
                continue
            if set_to_none:
                param.grad = None
            else:
                if param.grad.grad_fn is not None:
                    param.grad.detach_()
                else:
                    param.grad.requires_grad_(False)
                param.grad.zero_()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile calls of this module in place. Its attributes and its state dict do not change.

        Args:
            args: Positional arguments of `torch.compile` after the model.
            kwargs: Keyword arguments of `torch.compile`.
        """
        compilation = import_module("flambeau.nn.compilation")
        self._compiled_call_impl = compilation.compile(self._call_impl, *args, **kwargs)

    # -- hooks ------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; its result replaces the arguments.

        With `with_kwargs` it is `hook(module, args, kwargs)`, and returns None or a tuple of both.
        """
        flags = [self._forward_pre_hooks_with_kwargs] if with_kwargs else []
        return put(self._forward_pre_hooks, hook, *flags, prepend=prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; its result replaces the output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it also runs after an
        exception.
        """
        flags = [self._forward_hooks_with_kwargs] * with_kwargs
        flags += [self._forward_hooks_always_called] * always_call
        return put(self._forward_hooks, hook, *flags, prepend=prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the module's backward; its result replaces grad_output."""
        return put(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the module's inputs are computed.

        Its result replaces grad_input.
        """
        return self._register_backward(hook, True, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Register a backward hook in the older form, which receives the gradients of the last operation only."""
        return self._register_backward(hook, False, False)

    def _register_backward(self, hook: Callable[..., Any], full: bool, prepend: bool) -> RemovableHandle:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only "
                "one of them."
            )
        self._is_full_backward_hook = full
        return put(self._backward_hooks, hook, prepend=prepend)

    # -- as text ----------------------------------------------------------------------------------------

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the module's `repr`. It may have several lines."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {indent(repr(module))}" for name, module in self._modules.items()]
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({extra})"
        if not lines and not children:
            return f"{self._get_name()}()"
        body = "\n  ".join(lines + children)
        return f"{self._get_name()}(\n  {body}\n)"

    def _replicate_for_data_parallel(self) -> Any:
        replica = self.__new__(builtins.type(self))
        replica.__dict__ = self.__dict__.copy()
        replica._parameters = {}
        replica._buffers = replica._buffers.copy()
        replica._modules = replica._modules.copy()
        replica._is_replica = True
        return replica


def _charge_call(charge: host_work.Charge, args: tuple[Any, ...]) -> None:
    """Count a call of a module as work of the host if its first argument is a CUDA tensor."""
    if args and isinstance(args[0], Tensor) and args[0].meta.device.type == "cuda":
        charge(host_work.MODULE, 1)


def indent(text: str) -> str:
    """Return all lines but the first moved in by two blanks."""
    return text.replace("\n", "\n  ")


def _through(hooks: dict[int, Callable[..., Any]], module: Module, name: str, value: Any) -> Any:
    """Return a value that will be registered, after the registration hooks of all modules have changed it."""
    for hook in hooks.values():
        changed = hook(module, name, value)
        value = value if changed is None else changed
    return value


# Programs evaluate these annotations through instances, with their own names.
Module.__annotations__ = get_type_hints(Module)
