"""Proxies: values that record the operations that a program applies to them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import dis
import enum
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import flambeau as torch
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.call_forms import normalize_call
from flambeau.fx.codegen import magic_methods
from flambeau.fx.graph import Graph
from flambeau.fx.node import BASE_TYPES, Argument, Node, Target, map_aggregate
from flambeau.fx.traceback import get_current_meta, has_preserved_node_meta
from flambeau.tensor.arguments import torch_function
from flambeau.tensor.tensor import Tensor

__all__ = [
    "Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "Scope", "ScopeContextManager", "TraceError",
    "TracerBase", "assert_fn",
]  # fmt: skip

_NO_LOOPS = (
    "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a *args or **kwargs "
    "function argument. See the torch.fx docs on pytorch.org for a more detailed explanation of what types of control "
    "flow can be traced, and check out the Proxy docstring for help troubleshooting Proxy iteration errors"
)


class TraceError(ValueError):
    """The error raised if a program uses a proxy in a way that cannot be recorded."""


class Scope:
    """The submodule that a tracer is in.

    Attributes:
        module_path: Its name.
        module_type: Its class.
    """

    def __init__(self, module_path: str, module_type: Any) -> None:
        self.module_path, self.module_type = module_path, module_type


class ScopeContextManager:
    """A context in which a scope has the values of another."""

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        self._former = copy.copy(scope)
        self._scope = scope
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(self, *_: object) -> None:
        self._scope.module_path, self._scope.module_type = self._former.module_path, self._former.module_type


class TracerBase:
    """The base class of tracers, which record operations on proxies into a graph."""

    graph: Graph
    record_stack_traces: bool = False
    check_mutable_operations: bool = False
    trace_asserts: bool = False
    proxy_buffer_attributes: bool = False
    traced_func_name: str = "forward"
    scope: Scope
    module_stack: collections.OrderedDict[str, tuple[str, Any]]
    node_name_to_scope: dict[str, tuple[str, Any]]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Create a node in the tracer's graph. A subclass can check or change what is recorded."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        scope = getattr(self, "scope", None)
        if scope is not None:
            self.node_name_to_scope[node.name] = (scope.module_path, scope.module_type)
        if has_preserved_node_meta():
            node.meta.update(get_current_meta())
        stack = getattr(self, "module_stack", None)
        if stack and "nn_module_stack" not in node.meta:
            node.meta["nn_module_stack"] = copy.copy(stack)
        return node

    def proxy(self, node: Node) -> Proxy:
        """Return a proxy of a node's value."""
        return Proxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Create a node, whose arguments may contain proxies, and return a proxy of its value."""
        node_args, node_kwargs = self.create_arg(args), self.create_arg(kwargs)
        assert isinstance(node_args, tuple)
        assert isinstance(node_kwargs, dict)
        node = self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        proxy = proxy_factory_fn(node) if proxy_factory_fn else self.proxy(node)
        if self.record_stack_traces and not node.stack_trace:
            node.stack_trace = "".join(traceback.format_list(self._find_user_stack()))
        return proxy

    def _find_user_stack(self) -> list[traceback.FrameSummary]:
        frames = traceback.extract_stack()
        return [f for f in frames if "/flambeau/fx/" not in f.filename and "/flambeau/nn/" not in f.filename]

    def create_arg(self, a: Any) -> Argument:
        """Return an argument of a node for a value of the program: nodes for proxies, constants as they are.

        Raises:
            NotImplementedError: If graphs cannot contain such a value.
        """
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            values = [self.create_arg(each) for each in a]
            return type(a)(*values) if hasattr(a, "_fields") else type(a)(values)
        if isinstance(a, list):
            return [self.create_arg(each) for each in a]
        if isinstance(a, dict):
            return {_check_key(self.create_arg(key)): self.create_arg(value) for key, value in a.items()}
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, range):
            return range(*[self.create_arg(each) for each in (a.start, a.stop, a.step)])
        if isinstance(a, BASE_TYPES) or a is None or a is ...:
            return a
        if isinstance(a, enum.Enum):
            return a
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            fields = {f.name: self.create_arg(getattr(a, f.name)) for f in dataclasses.fields(a)}
            return self.create_node("call_function", type(a), (), fields)
        raise NotImplementedError(f"argument of type: {type(a)}")

    def to_bool(self, obj: Proxy) -> bool:
        """Return the truth value of a proxy. A tracer that has values can decide it.

        Raises:
            TraceError: always, in this class.
        """
        raise TraceError("symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Return an iterator over a proxy.

        Raises:
            TraceError: always, in this class.
        """
        raise TraceError(_NO_LOOPS)

    def keys(self, obj: Proxy) -> Any:
        """Return the result of `obj.keys()`: a proxy of the call."""
        return Attribute(obj, "keys")()


def _check_key(key: Any) -> Any:
    if isinstance(key, Node):
        raise RuntimeError(f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {key}")
    return key


class GraphAppendingTracer(TracerBase):
    """A tracer that appends to a given graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scope = Scope("", None)
        self.module_stack = collections.OrderedDict()
        self.node_name_to_scope = {}


def assert_fn(x: Any) -> None:
    """Raise AssertionError if `x` is false."""
    assert x


class Proxy:
    """A stand-in for a value while a function is traced.

    It behaves as the value would in calls of torch functions, methods, attributes and operators; each adds a node to
    the graph. The value itself is unknown, so `if`, loops, `len()` and conversions to numbers raise.

    Args:
        node: The node of the value.
        tracer: Records the operations. By default they are appended to the node's graph.
    """

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, k: str) -> Attribute:
        if k in ("tracer", "node"):
            raise AttributeError(k)
        return Attribute(self, k)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state

    def __deepcopy__(self, memo: dict[int, Any]) -> Proxy:
        new = type(self).__new__(type(self))
        new.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return new

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        count = _count_unpacked(sys._getframe(1))
        if count is not None:
            return (self[at] for at in range(count))
        return self.tracer.iter(self)

    def __abs__(self) -> Proxy:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self) -> bool:
        if self.tracer.trace_asserts and _record_assert(self, sys._getframe(1)):
            return True
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default. If you want this call to be recorded, please call "
            "torch.fx.wrap('len') at module scope"
        )

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracers: dict[TracerBase, None] = {}

        def note(value: Any) -> None:
            if isinstance(value, cls):
                tracers.setdefault(value.tracer)

        map_aggregate(args, note)
        map_aggregate(kwargs, note)
        if len(tracers) > 1:
            raise RuntimeError(
                f"Found multiple different tracers {list(tracers)} while trying to trace operations {orig_method}"
            )
        tracer = next(iter(tracers))
        if is_method(orig_method):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        kind, target, args, kwargs = normalize_call(orig_method, args, kwargs)
        return tracer.create_proxy(kind, target, args, kwargs)


def is_method(function: Any) -> bool:
    """Return True if a function is a method of Tensor."""
    return vars(Tensor).get(getattr(function, "__name__", None)) is function


def _count_unpacked(frame: FrameType) -> int | None:
    """Return into how many names the running statement `a, b = proxy` unpacks, or None for other uses."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            return instruction.argval if instruction.opname == "UNPACK_SEQUENCE" else None
    return None


def _record_assert(proxy: Proxy, frame: FrameType) -> bool:
    """Record `assert proxy` as a call of `assert_fn`; return False if the running statement is not an assert."""
    found = [i for i in dis.get_instructions(frame.f_code) if i.opname != "CACHE"]
    at = next((n for n, i in enumerate(found) if i.offset == frame.f_lasti), None)
    if at is None:
        return False
    after = [i.opname for i in found[at : at + 3]]
    if not any("JUMP" in name for name in after) or "LOAD_ASSERTION_ERROR" not in after:
        return False
    proxy.tracer.create_proxy("call_function", assert_fn, (proxy,), {})
    return True


class Attribute(Proxy):
    """An attribute of a proxied value. Its node is created when the value is used; a call is a method call."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """A proxy of a parameter, whose shape is known."""

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: Any) -> None:
        super().__init__(node, tracer)
        assert isinstance(param, torch.nn.Parameter)
        self.param, self.name = param, name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> Any:
        return self.param.shape

    def size(self, *args: Any) -> Any:
        return self.param.size(*args)

    def dim(self) -> int:
        return self.param.dim()

    @property
    def ndim(self) -> int:
        return self.param.ndim

    def numel(self) -> int:
        return self.param.numel()

    def nelement(self) -> int:
        return self.param.numel()


def _define_operators() -> None:
    for name in magic_methods:
        function = getattr(operator, name)
        setattr(Proxy, f"__{name.strip('_')}__", _make_operator(function, False))
    for name in (
        "add", "floordiv", "mul", "mod", "sub", "truediv", "matmul", "pow", "lshift", "rshift", "and_", "or_", "xor",
    ):  # fmt: skip
        setattr(Proxy, f"__r{name.strip('_')}__", _make_operator(getattr(operator, name), True))


def _make_operator(function: Callable[..., Any], is_reflected: bool) -> Callable[..., Any]:
    def operate(self: Proxy, *others: Any) -> Any:
        operands = (*others, self) if is_reflected else (self, *others)
        tracer = next(each.tracer for each in operands if isinstance(each, Proxy))
        return tracer.create_proxy("call_function", function, operands, {})

    operate.__name__ = function.__name__
    return operate


_define_operators()
torch_function.arm()
publish(globals())


explain_absent_names(globals(), "torch.fx.proxy")
