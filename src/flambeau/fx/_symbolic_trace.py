"""Symbolic tracing: running a function with proxies, which record its operations.

# Note [Patches during a trace]
Problem: calls of submodules and reads of parameters do not pass a proxy's methods.
Rule: while `Tracer.trace` runs, `Module.__call__` and `Module.__getattr__` and the functions that `wrap` registered
are replaced. `_Patches` restores them when the trace ends, in reverse order, also after an error. Traces may nest.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import flambeau as torch
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.codegen import _PyTreeCodeGen, _PyTreeInfo
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import BASE_TYPES, Argument, Node
from flambeau.fx.proxy import ParameterProxy, Proxy, Scope, ScopeContextManager, TracerBase
from flambeau.nn.modules.container import Sequential
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.runtime.generator import Generator
from flambeau.tensor.tensor import Tensor
from flambeau.utils import _pytree as pytree

__all__ = ["PH", "PHBase", "PHWithMeta", "ProxyableClassMeta", "Tracer", "is_fx_symbolic_tracing", "is_fx_tracing",
           "symbolic_trace", "wrap"]  # fmt: skip

_wrapped_fns_to_patch: dict[tuple[int, str], dict[str, Any]] = {}
"""(id of a module's globals, name) -> the globals, of functions that `wrap` registered."""

_wrapped_methods_to_patch: list[tuple[type, str]] = []
"""Class and name of methods that are recorded as one call."""

_is_tracing = False
_original_call = Module.__call__
_original_getattr = Module.__getattr__


def is_fx_tracing() -> bool:
    """Return True while a symbolic trace runs."""
    return _is_tracing


def is_fx_symbolic_tracing() -> bool:
    """Return True while a symbolic trace runs, and `torch.compile` does not."""
    return _is_tracing


class PHBase:
    """A placeholder among the `concrete_args` of a trace."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()


class PHWithMeta(PHBase):
    """A placeholder for an argument, whose attributes are copied to the node of its graph."""

    def __init__(self, ph_key: str | None = None) -> None:
        self.ph_key = ph_key


class ProxyableClassMeta(type):
    """A metaclass with which traces record the construction of an object that has a proxy among its arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instance = cls.__new__(cls)  # type: ignore[call-overload]
        if not is_fx_tracing():
            instance.__init__(*args, **kwargs)
            return instance
        found = _find_proxies(args, kwargs)
        if not found:
            instance.__init__(*args, **kwargs)
            return instance
        return found[0].tracer.create_proxy("call_function", cls, args, kwargs)


def _find_proxies(*values: Any) -> list[Proxy]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, Proxy)]


# -- patches ------------------------------------------------------------------------------------------------


class _Patches:
    """Replacements of attributes and dict items, in effect within the context."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []
        self.seen: set[int] = set()

    def patch_method(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        own = name in vars(owner)
        self.undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))
        setattr(owner, name, make(original))

    def patch_item(self, space: dict[str, Any], name: str, make: Callable[[Any], Any]) -> None:
        if name not in space and not hasattr(builtins, name):
            return
        own = name in space
        original = space[name] if own else getattr(builtins, name)
        if getattr(original, "_fx_wraps", None) is not None:
            return

        def restore() -> None:
            if own:
                space[name] = original
            else:
                del space[name]

        self.undo.append(restore)
        space[name] = make(original)

    def __enter__(self) -> _Patches:
        return self

    def __exit__(self, *_: object) -> None:
        while self.undo:
            self.undo.pop()()


def _wrap_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records a call if an argument is a proxy, and else calls `original`."""

    @functools.wraps(original)
    def record_call(*args: Any, **kwargs: Any) -> Any:
        found = _find_proxies(args, kwargs)
        if not found:
            return original(*args, **kwargs)
        proxy = found[0].tracer.create_proxy("call_function", original, args, kwargs)
        proxy.node.meta["is_wrapped"] = True
        return proxy

    record_call._fx_wraps = original  # type: ignore[attr-defined]
    return record_call


def _wrap_method(owner: type, name: str) -> Callable[[Any], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def record_call(*args: Any, **kwargs: Any) -> Any:
            found = _find_proxies(args, kwargs)
            if not found:
                return original(*args, **kwargs)
            return found[0].tracer.create_proxy("call_method", name, args, kwargs)

        return record_call

    return make


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Let traces record calls of a global function as one node, instead of tracing into it.

    Call it at the top level of the module that calls the function, with its name, or use it as a decorator of the
    function.

    Raises:
        RuntimeError: If the argument is neither callable nor a string.
        NotImplementedError: If the call is not at the top level of a module.
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    if callable(fn_or_name):
        assert not isinstance(fn_or_name, str)
        name = fn_or_name.__name__
    else:
        name = fn_or_name
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    _wrapped_fns_to_patch[id(frame.f_globals), name] = frame.f_globals
    return fn_or_name


def _assert_is_none(value: Any, msg: str) -> None:
    assert value is None, msg


# -- tracers ------------------------------------------------------------------------------------------------


class Tracer(TracerBase):
    """A tracer that records the uses of proxies by a function or module as a Graph.

    Args:
        autowrap_modules: Modules whose functions are recorded as one call each.
        autowrap_functions: Functions that are recorded as one call each.
        param_shapes_constant: Lets the shapes of parameters be constants of the graph.
    """

    def __init__(
        self,
        autowrap_modules: tuple[types.ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        super().__init__()
        self._autowrap_function_ids = {
            id(value)
            for module in autowrap_modules
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value)
        } | {id(function) for function in autowrap_functions}
        self._autowrap_search: list[types.ModuleType] = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[Module, str] | None = None
        self.root_module_name = ""
        self.scope = Scope("", None)
        self.module_stack = collections.OrderedDict()
        self.num_calls: dict[str, int] = {}
        self.node_name_to_scope = {}
        self.tensor_attrs: dict[Any, str] = {}

    # -- what a subclass may change -----------------------------------------------------------------

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Return True if calls of a module are recorded as one node. True for the modules of `torch.nn`."""
        parts = type(m).__module__.split(".")
        return parts[:2] in (["torch", "nn"], ["flambeau", "nn"]) and not isinstance(m, Sequential)

    def path_of_module(self, mod: Module) -> str:
        """Return the dotted name of a submodule of the root.

        Raises:
            NameError: If it is not a submodule of the root.
        """
        if self.submodule_paths:
            path = self.submodule_paths.get(mod)
            if path is None:
                raise NameError("module is not installed as a submodule")
            return path
        for name, module in self.root.named_modules():
            if module is mod:
                return name
        raise NameError("module is not installed as a submodule")

    def call_module(
        self, m: Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record or run a call of a module: one node for leaf modules, the operations of the others."""
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            calls = self.num_calls.get(path, 0)
            key = f"{path}@{calls}" if calls else path
            self.module_stack[key] = (path, type(m))
            self.num_calls[path] = calls + 1
            try:
                if self.is_leaf_module(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.pop(key)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return the value that a module's attribute has during the trace: a proxy for parameters."""
        if isinstance(attr_val, Parameter):
            return self._proxy_attribute(
                attr_val, self.root.named_parameters(), parameter_proxy_cache, self.param_shapes_constant
            )
        if self.proxy_buffer_attributes and isinstance(attr_val, Tensor):
            return self._proxy_attribute(attr_val, self.root.named_buffers(), parameter_proxy_cache, False)
        return attr_val

    def _proxy_attribute(self, value: Any, named: Any, cache: dict[str, Any], has_known_shape: bool) -> Any:
        for name, candidate in named:
            if candidate is not value:
                continue
            if name not in cache:
                make = (lambda node: ParameterProxy(self, node, name, value)) if has_known_shape else None  # noqa: B023
                cache[name] = self.create_proxy("get_attr", name, (), {}, proxy_factory_fn=make)
            return cache[name]
        return value

    def create_arg(self, a: Any) -> Argument:
        """Return an argument of a node. Parameters, buffers and other tensors become reads of attributes.

        Raises:
            NameError: If a parameter is not a parameter of the root.
            NotImplementedError: If graphs cannot contain such a value.
        """
        if isinstance(a, Parameter):
            for name, param in self.root.named_parameters():
                if a is param:
                    return self.create_node("get_attr", name, (), {})
            raise NameError("parameter is not a member of this module")
        if isinstance(a, Tensor):
            for name, buffer in self.root.named_buffers():
                if a is buffer:
                    return self.create_node("get_attr", name, (), {})
            return self._read_constant(a, "_tensor_constant")
        if isinstance(a, Generator):
            return self._read_constant(a, "_opaque_obj")
        if isinstance(a, Module):
            for name, module in self.root.named_modules():
                if a is module:
                    return self.create_node("get_attr", name, (), {})
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return self.create_node(
                "call_function", type(a), tuple([self.create_arg(each) for each in a]), {}
            )
        if type(a).__class__ is ProxyableClassMeta:
            return self._read_constant(a, f"_{type(a).__name__}_constant_")
        return super().create_arg(a)

    def _read_constant(self, value: Any, prefix: str) -> Node:
        name = self.tensor_attrs.get(value)
        if name is None:
            number = 0
            while hasattr(self.root, f"{prefix}{number}"):
                number += 1
            name = f"{prefix}{number}"
            self.tensor_attrs[value] = name
            setattr(self.root, name, value)
        return self.create_node("get_attr", name, (), {})

    def get_fresh_qualname(self, prefix: str) -> str:
        """Return `prefix` with the first number such that the root has no attribute of this name."""
        number = 0
        while hasattr(self.root, f"{prefix}{number}"):
            number += 1
        return f"{prefix}{number}"

    # -- arguments of the root ----------------------------------------------------------------------

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Create placeholders for the parameters of the function to trace.

        Args:
            root_fn: The function.
            is_module: The first parameter is the root module itself.
            concrete_args: Values of parameters that are not traced: a dict by name, or a tuple of all.

        Returns:
            The function to call and its arguments. The function differs where `concrete_args` are nested.
        """
        analyzed = inspect.unwrap(root_fn)
        code = analyzed.__code__
        names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        defaults = inspect.signature(analyzed).parameters
        args: list[Any] = []
        if is_module:
            if not names:
                raise RuntimeError("``self`` argument cannot be part of *args expansion!")
            args.append(self.root)
            names = names[1:]
        if isinstance(concrete_args, tuple):
            if len(names) != len(concrete_args):
                raise RuntimeError(
                    f"Tracing expected {len(names)} arguments but got {len(concrete_args)} concrete arguments"
                )
            concrete_args = dict(zip(names, concrete_args, strict=True))
        args += [self._create_placeholder(name, concrete_args, defaults, analyzed) for name in names]
        rest = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
        if code.co_flags & inspect.CO_VARARGS:
            args.append(self._create_placeholder("*" + rest.pop(0), concrete_args, defaults, analyzed))
        if code.co_flags & inspect.CO_VARKEYWORDS:
            args.append(self._create_placeholder("**" + rest.pop(0), concrete_args, defaults, analyzed))
        if code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            root_fn = _take_all_by_position(analyzed, len(args))
        if concrete_args and any(_is_nested(value) for value in concrete_args.values()):
            return self._flatten_root(root_fn, is_module, args, names)
        return root_fn, args

    def _flatten_root(
        self, root_fn: Callable[..., Any], is_module: bool, args: list[Any], names: list[str]
    ) -> tuple[Any, list[Any]]:
        leaves, spec = pytree.tree_flatten(tuple(args))
        shown = args[1:] if is_module else args
        in_spec = pytree.tree_structure(tuple(shown))
        self.graph._codegen = _PyTreeCodeGen(_PyTreeInfo(names[: len(shown)], in_spec, None))

        def flatten(*flat: Any) -> Any:
            result = root_fn(*pytree.tree_unflatten(list(flat), spec))
            values, out_spec = pytree.tree_flatten(result)
            assert isinstance(self.graph._codegen, _PyTreeCodeGen)
            info = self.graph._codegen.pytree_info
            self.graph._codegen.pytree_info = info._replace(out_spec=out_spec)
            return values

        return flatten, leaves

    def _create_placeholder(
        self, name: str, concrete: dict[str, Any] | None, parameters: Any, function: Any
    ) -> Any:
        parameter = parameters.get(name.lstrip("*"))
        default = () if parameter is None or parameter.default is parameter.empty or name[0] == "*" else (
            parameter.default,
        )  # fmt: skip
        if concrete is not None and name in concrete:
            number = [0]

            def specialize(value: Any) -> Any:
                number[0] += 1
                return self._specialize(name, f"{name}_{number[0]}", value, default)

            return pytree.tree_map(specialize, concrete[name])
        return self.create_proxy("placeholder", name, default, {}, type_expr=_read_annotation(function, name))

    def _specialize(self, name: str, placeholder: str, value: Any, default: tuple[Any, ...]) -> Any:
        if isinstance(value, PHBase):
            proxy = self.create_proxy("placeholder", placeholder, (), {})
            if isinstance(value, PHWithMeta):
                _copy_attributes(value, proxy.node)
            return proxy
        proxy = self.create_proxy("placeholder", placeholder, default, {})
        if value is None:
            self.create_proxy("call_function", _assert_is_none, (proxy, _describe(name, value)), {})
        elif isinstance(value, BASE_TYPES) and not isinstance(value, Tensor):
            torch._assert(proxy == value, _describe(name, value))
        return value

    # -- tracing ------------------------------------------------------------------------------------

    def trace(self, root: Module | Callable[..., Any], concrete_args: Any = None) -> Graph:
        """Run a module's `forward`, or a function, with proxies and return the recorded graph.

        Args:
            root: The module or function.
            concrete_args: Values of parameters that are not to be proxies; `PH` marks the others in containers.

        Raises:
            TraceError: If the program branches or loops on a proxy.
        """
        global _is_tracing
        former, _is_tracing = _is_tracing, True
        try:
            return self._trace(root, concrete_args)
        finally:
            _is_tracing = former

    def _trace(self, root: Any, concrete_args: Any) -> Graph:
        if isinstance(root, Module):
            self.root = root
            assert hasattr(type(root), self.traced_func_name), (
                f"traced_func_name={self.traced_func_name} doesn't exist in {type(root).__name__}"
            )
            function: Any = getattr(type(root), self.traced_func_name)
            self.root_module_name = root._get_name()
            self.submodule_paths = {module: name for name, module in root.named_modules()}
        else:
            self.root = Module()
            function = root
            self.submodule_paths = None
        self.graph = Graph(tracer_cls=type(self))
        self.tensor_attrs = {}
        _collect_tensors(self.root, "", self.tensor_attrs)
        assert isinstance(function, types.FunctionType), f"Expected FunctionType, got {type(function)}"
        space = function.__globals__
        code = inspect.unwrap(function).__code__
        self.graph._co_fields = {
            "co_name": code.co_name, "co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno,
        }  # fmt: skip
        function, args = self.create_args_for_root(function, isinstance(root, Module), concrete_args)
        cache: dict[str, Any] = {}
        with _Patches() as patches:
            self._patch(patches, space, cache)
            result = function(*args)
            value = self.create_arg(result)
        self.create_node("output", "output", (value,), {}, type_expr=_read_annotation(function, "return"))
        self.submodule_paths = None
        return self.graph

    def _patch(self, patches: _Patches, space: dict[str, Any], cache: dict[str, Any]) -> None:
        def make_call(original: Any) -> Any:
            @functools.wraps(original)
            def call(mod: Module, *args: Any, **kwargs: Any) -> Any:
                def forward(*args: Any, **kwargs: Any) -> Any:
                    return _original_call(mod, *args, **kwargs)

                self._autowrap(patches, getattr(type(mod).forward, "__globals__", {}))
                return self.call_module(mod, forward, args, kwargs)

            return call

        def make_getattr(original: Any) -> Any:
            @functools.wraps(original)
            def get(mod: Module, name: str) -> Any:
                return self.getattr(name, _original_getattr(mod, name), cache)

            return get

        patches.patch_method(Module, "__getattr__", make_getattr)
        patches.patch_method(Module, "__call__", make_call)
        for (_, name), wrapped_space in list(_wrapped_fns_to_patch.items()):
            patches.patch_item(wrapped_space, name, _wrap_function)
        for owner, name in _wrapped_methods_to_patch:
            patches.patch_method(owner, name, _wrap_method(owner, name))
        self._autowrap(patches, space)
        for module in self._autowrap_search:
            self._autowrap(patches, vars(module))

    def _autowrap(self, patches: _Patches, space: dict[str, Any]) -> None:
        if not self._autowrap_function_ids or id(space) in patches.seen:
            return
        patches.seen.add(id(space))
        for name, value in list(space.items()):
            if not name.startswith("_") and callable(value) and id(value) in self._autowrap_function_ids:
                patches.patch_item(space, name, _wrap_function)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        new = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            skipped = name in ("_autowrap_search",)
            new.__dict__[name] = copy.copy(value) if skipped else copy.deepcopy(value, memo)
        return new


def _take_all_by_position(function: types.FunctionType, count: int) -> types.FunctionType:
    """Return a function whose keyword-only, `*` and `**` parameters are positional, so that each can be a proxy."""
    code = function.__code__
    code = code.replace(
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def _read_annotation(function: types.FunctionType, name: str) -> Any:
    """Return a parameter's annotation. Annotations of Flambeau's functions are strings, which this function
    evaluates.
    """
    found = function.__annotations__.get(name)
    package = (function.__module__ or "").partition(".")[0]
    if not isinstance(found, str) or package not in ("flambeau", "torch"):
        return found
    value = function.__globals__.get(found)
    return value if value is Tensor else None


def _describe(name: str, value: Any) -> str:
    return f"{name} has been specialized to have value {value} but got another value"


def _is_nested(value: Any) -> bool:
    return not pytree.tree_is_leaf(value)


def _copy_attributes(source: Any, target: Any) -> None:
    for name, value in vars(source).items():
        if not hasattr(target, name):
            setattr(target, name, value)


def _collect_tensors(module: Module, path: str, found: dict[Any, str]) -> None:
    """Add the tensors that are plain attributes of a module and of its submodules, by name."""
    for name, value in vars(module).items():
        if isinstance(value, Tensor | Generator):
            found[value] = f"{path}{name}"
    for name, child in module.named_children():
        _collect_tensors(child, f"{path}{name}.", found)


def symbolic_trace(root: Module | Callable[..., Any], concrete_args: Any = None) -> GraphModule:
    """Return a GraphModule that does what a module or function does.

    Args:
        root: The module or function. It must not branch or loop on its inputs.
        concrete_args: Values of parameters that are constants of the trace, by name.

    Raises:
        TraceError: If the program branches or loops on an input.
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = root._get_name() if isinstance(root, Module) else root.__name__
    return GraphModule(tracer.root, graph, name)


publish(globals())


explain_absent_names(globals(), "torch.fx._symbolic_trace")
