"""Tracing with tensors: `make_fx` records the operators of `torch.ops.aten` that a function calls.

# Note [Tracing with tensors]
Problem: A graph of operators below autograd needs the calls that dispatch modes see, and which value is which.
Rule: A tracer gives the function's parameters as proxies, which `_with_tensors` replaces by the tensors of the call. A
dispatch mode runs each operator, records it, and keeps the proxy of each result by the identity of the tensor.
Consequences: Branches, loops and sizes are those of the call. A tensor that no recorded operator returned is an
attribute of the module. Numbers that are read from tensors would be wrong for other inputs: that raises, except for
tensors of one element that the function itself made of numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, NamedTuple

from flambeau._aten.overloads import find_overload
from flambeau._library.user_operators import OpOverload, Tag
from flambeau._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx._symbolic_trace import PH, Tracer
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import Argument
from flambeau.fx.passes.shape_prop import _extract_tensor_metadata
from flambeau.fx.proxy import Proxy
from flambeau.fx.qualified_names import find_name
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tensor import dispatch
from flambeau.tensor.tensor import Tensor
from flambeau.utils._python_dispatch import TorchDispatchMode
from flambeau.utils._pytree import tree_leaves, tree_map
from flambeau.utils.weak import WeakIdKeyDictionary

__all__ = [
    "ProxyTorchDispatchMode",
    "PythonKeyTracer",
    "disable_proxy_modes_tracing",
    "dispatch_trace",
    "get_innermost_proxy_mode",
    "get_proxy_mode",
    "make_fx",
]


class _Tracked(NamedTuple):
    """A tensor that a trace has seen.

    Attributes:
        proxy: The proxy of its value.
        constant: A tensor with its value if that depends on no input, None if it does or is larger than a number.
    """

    proxy: Proxy
    constant: Tensor | None = None


class PythonKeyTracer(Tracer):
    """A tracer whose nodes are calls of operators. Modules are traced through; their tensors become attributes.

    Attributes:
        tracked: Tensor -> its proxy and constant.
    """

    def __init__(self) -> None:
        super().__init__(autowrap_modules=())
        self.tracked: WeakIdKeyDictionary[_Tracked] = WeakIdKeyDictionary()
        self.fakes = FakeTensorMode()

    def call_module(
        self, m: Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a module."""
        return forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a module's attribute itself."""
        return attr_val

    def create_arg(self, a: Any) -> Argument:
        """Return an argument of a node. Tensors that are not tracked become attributes of the root."""
        if isinstance(a, Parameter):
            found = next((name for name, each in self.root.named_parameters() if each is a), None)
            node = self.create_node("get_attr", found) if found else self._read_constant(a, "_param_constant")
        elif isinstance(a, Tensor):
            node = self._read_constant(a, "_tensor_constant")
        else:
            return super().create_arg(a)
        node.meta["val"] = self.fakes.snapshot(a)
        return node

    def track(self, value: Any, proxy: Proxy, constant: Any = None) -> None:
        """Store that a proxy represents a value, which may be a list of tensors.

        Args:
            value: The value.
            proxy: The proxy.
            constant: The same value if it depends on no input, else None.
        """
        self.describe(proxy.node.meta, value)
        if isinstance(value, Tensor):
            self.tracked[value] = _Tracked(proxy, constant)
        elif isinstance(value, list | tuple):
            for i, each in enumerate(value):
                self.track(each, proxy[i], None if constant is None else constant[i])

    def describe(self, meta: dict[str, Any], value: Any) -> None:
        """Store shapes and dtypes of a value as PyTorch does: fake tensors as `val`, and `tensor_meta`."""
        meta["val"] = tree_map(lambda x: self.fakes.snapshot(x) if isinstance(x, Tensor) else x, value)
        if isinstance(value, Tensor):
            meta["tensor_meta"] = _extract_tensor_metadata(value)

    def replace(self, values: Any) -> Any:
        """Return values with the proxies of tracked tensors in place of these."""
        return tree_map(lambda x: self.tracked[x].proxy if self._is_tracked(x) else x, values)

    def find_constants(self, values: Any) -> tuple[bool, bool, Any]:
        """Return (all tracked tensors are constants, there is a constant, the values with the constants).

        Args:
            values: Arguments of an operator.
        """
        found = [self.tracked[x].constant for x in tree_leaves(values) if self._is_tracked(x)]
        if any(each is None for each in found):
            return False, False, None
        return (
            True,
            bool(found),
            tree_map(lambda x: self.tracked[x].constant if self._is_tracked(x) else x, values),
        )

    def _is_tracked(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x in self.tracked


class ProxyTorchDispatchMode(TorchDispatchMode):
    """The mode that records operators in a tracer's graph.

    Args:
        tracer: The tracer.
        tracing_mode: How values are computed: "real" or "fake".
        decomposition_table: Overload -> function that is traced instead of it.
    """

    def __init__(
        self,
        tracer: PythonKeyTracer,
        tracing_mode: str,
        decomposition_table: Mapping[OpOverload, Callable[..., Any]],
    ) -> None:
        self.tracer, self.tracing_mode, self.decomposition_table = tracer, tracing_mode, decomposition_table

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: programs do not enter this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        decompose = self.decomposition_table.get(func)
        if decompose is not None:
            with self:
                result = decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.record(func, args, kwargs)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and add a node for it.

        Raises:
            RuntimeError: If its result is a number that depends on an input.
        """
        tracer = self.tracer
        is_known, has_constants, constants = tracer.find_constants((args, kwargs))
        if Tag.data_dependent_output in func.tags:
            if is_known:
                return func(*constants[0], **constants[1])
            raise RuntimeError(
                f"It appears that you're trying to get value out of a tracing tensor with {func} - erroring out! It's "
                "likely that this is caused by data-dependent control flow or similar. The graph would be wrong for "
                "other inputs. Compute with tensors instead, as torch.where does, or read the number before the trace."
            )
        if func is find_overload("lift_fresh"):
            func = find_overload("lift_fresh_copy")
        name = tracer.graph._target_to_str(func.overloadpacket.__name__)
        proxy = tracer.create_proxy(
            "call_function", func, tracer.replace(args), tracer.replace(kwargs), name=name
        )
        result = func(*args, **kwargs)
        tracer.track(result, proxy, self._compute_constant(func, result, has_constants, args, constants))
        return result

    def _compute_constant(
        self, func: Any, result: Any, has_constants: bool, args: Any, constants: Any
    ) -> Any:
        """Return the result as a function of numbers alone, None if it is of inputs, or large."""
        leaves = tree_leaves(result)
        if not all(isinstance(x, Tensor) and x.numel() <= 1 for x in leaves):
            return None
        with dispatch.without_modes():
            if func is find_overload("lift_fresh_copy"):
                return None if isinstance(args[0], FakeTensor) else args[0].clone()
            if has_constants and Tag.nondeterministic_seeded not in func.tags:
                return func(*constants[0], **constants[1])
        return None


def make_fx(
    f: Callable[..., Any],
    decomposition_table: Mapping[OpOverload, Callable[..., Any]] | None = None,
    tracing_mode: str = "real",
    _allow_non_fake_inputs: bool = False,
    *,
    pre_dispatch: bool = False,
    record_module_stack: bool = False,
    record_stack_traces: bool = False,
    **other: Any,
) -> Callable[..., GraphModule]:
    """Return a function of example inputs that records what `f` does with them as a graph of `torch.ops.aten`.

    Args:
        f: The function or module.
        decomposition_table: Overload -> function that is traced instead of it.
        tracing_mode: "real" computes with the inputs; "fake" with their shapes, dtypes and devices only.
        pre_dispatch: Not supported.
        record_module_stack: Not supported.
        record_stack_traces: Keep in each node the lines of the program that called it.

    Raises:
        NotSupportedError: If the tracing mode is "symbolic", or another option asks for what Flambeau lacks.
        RuntimeError: From the returned function, if `f` reads a number that depends on an input.

    Source: `torch.fx.experimental.proxy_tensor.make_fx`.
    """
    if tracing_mode not in ("real", "fake", "symbolic"):
        raise AssertionError(f"tracing_mode must be 'real', 'fake', or 'symbolic', got {tracing_mode}")
    if tracing_mode == "symbolic":
        raise NotSupportedError(
            "make_fx(tracing_mode='symbolic'): Flambeau has no symbolic sizes; use 'real' or 'fake', and trace once "
            "for each shape"
        )
    given = {"pre_dispatch": pre_dispatch, "record_module_stack": record_module_stack} | other
    for name in [name for name, value in given.items() if value and name in _UNSUPPORTED]:
        raise NotSupportedError(f"make_fx({name}=True): {_UNSUPPORTED[name]}; leave it out")
    if unknown := other.keys() - _KNOWN:
        raise TypeError(f"make_fx() got an unexpected keyword argument '{sorted(unknown)[0]}'")

    def trace(*args: Any) -> GraphModule:
        tracer = PythonKeyTracer()
        tracer.record_stack_traces = record_stack_traces
        fake_mode = (
            FakeTensorMode(allow_non_fake_inputs=_allow_non_fake_inputs) if tracing_mode == "fake" else None
        )
        mode = ProxyTorchDispatchMode(tracer, tracing_mode, decomposition_table or {})
        if fake_mode is not None:
            args = tree_map(lambda x: fake_mode.from_tensor(x) if isinstance(x, Tensor) else x, args)
        marks = tree_map(lambda _: PH, args)
        with fake_mode or nullcontext():
            return dispatch_trace(_with_tensors(_by_position(f, len(args)), args, mode), tracer, tuple(marks))

    return trace


_UNSUPPORTED = {
    "pre_dispatch": "Flambeau shows operators below autograd only",
    "record_module_stack": "nodes do not name the modules that called them",
    "proxy_module_inputs": "modules are traced through",
}
_KNOWN = {
    "_allow_fake_constant", "_disable_torch_fn_metadata_mode", "_error_on_data_dependent_ops", "proxy_module_inputs",
}  # fmt: skip


def dispatch_trace(
    root: Callable[..., Any], tracer: Tracer, concrete_args: tuple[Any, ...] | None = None
) -> GraphModule:
    """Return the module that a tracer records of a function.

    Args:
        root: The function.
        tracer: The tracer.
        concrete_args: Values of parameters that are not to be proxies.
    """
    graph: Graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, Module) else root.__name__
    return GraphModule(tracer.root, graph, name)


def _by_position(f: Any, count: int) -> Callable[..., Any]:
    """Return `f` as a function with `count` positional parameters.

    PyTorch's functions have no Python parameters there, so graphs do not show names.
    """
    code = getattr(inspect.unwrap(f), "__code__", None)
    is_plain = code is not None and not inspect.ismethod(f) and find_name(f) is None
    if is_plain and not code.co_flags & inspect.CO_VARARGS:
        function: Callable[..., Any] = f
        return function
    names = ", ".join([f"arg{i}" for i in range(count)])
    function = eval(f"lambda {names}: f({names})", {"f": f})
    function.__name__ = getattr(f, "__name__", type(f).__name__)
    return function


def _with_tensors(
    f: Callable[..., Any], args: tuple[Any, ...], mode: ProxyTorchDispatchMode
) -> Callable[..., Any]:
    """Return a function of proxies that runs `f` with `args`, and returns the proxies of its result."""
    tracer = mode.tracer

    @wraps(f)
    def run(*proxies: Any) -> Any:
        for value, proxy in zip(tree_leaves(args), tree_leaves(proxies), strict=True):
            if isinstance(value, Tensor):
                tracer.track(value, proxy)
        with mode:
            result = f(*args)
        return tracer.replace(result)

    return run


def get_innermost_proxy_mode() -> ProxyTorchDispatchMode | None:
    """Return the innermost mode that records operators; None if no trace runs."""
    found = [mode for mode in dispatch.local.modes if isinstance(mode, ProxyTorchDispatchMode)]
    return found[-1] if found else None


get_proxy_mode = get_innermost_proxy_mode


@contextmanager
def disable_proxy_modes_tracing() -> Iterator[None]:
    """Run a block whose operators are not recorded."""
    with dispatch.without_modes(
        [m for m in dispatch.local.modes if not isinstance(m, ProxyTorchDispatchMode)]
    ):
        yield


publish(globals())
explain_absent_names(globals(), "torch.fx.experimental.proxy_tensor")
