"""Functions that a backend of the program compiles: their graphs are recorded while they run.

# Note [Graphs for backends]
Problem: A backend receives a graph of PyTorch's public functions, and runs it in place of the function. The function
may do what a graph does not contain, and its Python code must not run twice.
Rule: The first call runs the function itself, with its tensors, and a `TorchFunctionMode` records each call. Reads of
values, state that changes, and tensors that no recorded call returned make it unfit for a graph: then the result is
still the function's, and later calls run eagerly. Sizes, numbers and branches are those of the call, hence guards on
layouts, on other arguments, on the thread's modes, and on the state that the function can read.
Consequences: `dynamic=True` changes nothing. A graph that writes into tensors or draws random numbers serves from the
second call on; one that does not serves the first call, too.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._dynamo.exc import BackendCompilerFailed, Unsupported
from flambeau.core.callsite import caller
from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.errors import RaceError
from flambeau.core.logs import is_logged, log
from flambeau.fx.call_forms import normalize_call
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import Node
from flambeau.fx.proxy import is_method
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.nn.replay.nesting import flatten, rebuild
from flambeau.nn.replay.python_state import CodeThatRan, Everything, PythonState, TooMuchState
from flambeau.nn.replay.recorded_capture import CaptureBreak
from flambeau.nn.replay.replayed_function import LIMIT, GraphDescription, key_of, thread_modes
from flambeau.runtime import generator
from flambeau.tape.mode import mode
from flambeau.tensor import autocast
from flambeau.tensor.arguments import torch_function
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.arguments.torch_function import TorchFunctionMode
from flambeau.tensor.arguments.typing import layout, memory_format
from flambeau.tensor.tensor import Tensor

# Methods and functions whose results the guards on layouts decide.
_METADATA = frozenset(
    {
        "size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "is_contiguous", "storage_offset",
        "is_floating_point", "is_complex", "is_conj", "is_neg", "is_signed", "is_inference", "is_tensor", "get_device",
        "type", "__len__", "__hash__", "__get__", "result_type", "can_cast", "broadcast_shapes", "is_grad_enabled",
        "is_same_size", "_is_view", "has_names",
    }
)  # fmt: skip
_CONSTANTS = (
    int,
    float,
    complex,
    str,
    bool,
    type(None),
    type(...),
    dtype,
    device,
    layout,
    memory_format,
    range,
)


class Unfit(Exception):
    """The error of a function that a graph cannot stand for."""


class _Recorder(TorchFunctionMode):
    """The mode that records the calls of a function.

    Args:
        state: The state that the function can read, whose tensors become attributes of the graph's module.
        inputs: The tensors among its arguments, by name.
    """

    def __init__(self, state: PythonState, inputs: dict[str, Tensor]) -> None:
        self.root, self.graph = Module(), Graph()
        self.refusal: CaptureBreak | None = None
        self._state = state
        self._modes = self._recorded_modes()
        self._nodes: dict[int, Node] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of a recorded tensor
        for name, value in inputs.items():
            if id(value) not in self._nodes:
                self._keep(value, self.graph.placeholder(name))

    @staticmethod
    def _recorded_modes() -> tuple[Any, ...]:
        return mode.recording, tuple(autocast.local.enabled.items())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.refusal is None:
            try:
                self._record(func, args, kwargs, result)
            except Unfit as error:
                self.refusal = CaptureBreak(str(error), caller(), is_final=True)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = getattr(func, "__name__", str(func))
        given, made = list(tensors_in((args, kwargs))), list(tensors_in(result))
        if not made and name != "__setitem__":
            if given and name not in _METADATA:
                raise Unfit(f"the result of {name} is not a tensor")
            return
        if self._recorded_modes() != self._modes:
            raise Unfit("grad mode or autocast is changed")
        if name == "__get__":
            kind, target, args = "call_function", getattr, (args[0], _name_of_property(func))
        elif name in ("__setitem__", "__getitem__"):
            kind, target = "call_function", getattr(operator, name.strip("_"))
        elif is_method(func):
            kind, target = "call_method", func.__name__
        else:
            kind, target, args, kwargs = normalize_call(func, args, kwargs)
        node = self.graph.create_node(kind, target, self.node_of(tuple(args)), self.node_of(dict(kwargs)))
        if made:
            self._keep(result, node)

    def _keep(self, value: Any, node: Node) -> None:
        """Store that a node computes a value, and its items."""
        if isinstance(value, Tensor):
            self._kept.append(value)
            self._nodes[id(value)] = node
        elif isinstance(value, tuple | list):
            for k, each in enumerate(value):
                if isinstance(each, Tensor):
                    self._keep(each, self.graph.call_function(operator.getitem, (node, k)))

    def node_of(self, value: Any) -> Any:
        """Return an argument of a node: nodes for tensors.

        Raises:
            Unfit: For a tensor that neither a recorded call returned nor a guard reaches.
        """
        if isinstance(value, Tensor):
            return self._nodes.get(id(value)) or self._read(value)
        if isinstance(value, tuple | list):
            items = [self.node_of(each) for each in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self.node_of(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(*[self.node_of(each) for each in (value.start, value.stop, value.step)])
        if not isinstance(value, _CONSTANTS):
            raise Unfit(f"an argument is an object of the class {type(value).__name__}")
        return value

    def _read(self, value: Tensor) -> Node:
        """Return a node that reads a tensor of the program as an attribute."""
        if id(value) not in self._state.tensors:
            raise Unfit("it uses a tensor that no recorded call returned and no guard reaches")
        path = (
            "".join([c if c.isalnum() else "_" for c in self._state.paths[id(value)]]).strip("_") or "tensor"
        )
        name = path if path.isidentifier() and not hasattr(self.root, path) else f"tensor_{len(self._nodes)}"
        if isinstance(value, Parameter):
            self.root.register_parameter(name, value)
        else:
            self.root.register_buffer(name, value)
        node = self.graph.get_attr(name)
        self._keep(value, node)
        return node


class _Compiled:
    """A graph that a backend has compiled, with its guards."""

    def __init__(self, run: Callable[..., Any], module: GraphModule, state: PythonState, result: Any) -> None:
        self.run, self.module, self.state = run, module, state
        leaves: list[Any] = []
        self._nesting = flatten(result, leaves)
        self._constants = [None if isinstance(x, Tensor) else (x,) for x in leaves]

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        results = self.run(*inputs)
        tensors = iter(results if isinstance(results, tuple | list) else (results,))
        return rebuild(self._nesting, [next(tensors) if c is None else c[0] for c in self._constants])


class BackendFunction:
    """A function whose calls a backend of the program compiles.

    Args:
        function: The function.
        backend: Called with a GraphModule and a list of tensors, returns the function to run.
        fullgraph: True if a function that a graph cannot stand for is an error.

    Attributes:
        breaks: Why calls run eagerly.
    """

    def __init__(self, function: Callable[..., Any], backend: Callable[..., Any], fullgraph: bool) -> None:
        self.function, self.backend, self.fullgraph = function, backend, fullgraph
        self.breaks: list[CaptureBreak] = []
        self._compiled: dict[tuple[Any, ...], list[_Compiled]] = {}
        self._unfit: set[tuple[Any, ...]] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch_function.here.entered:  # the call is part of another graph
            return self.function(*args, **kwargs)
        leaves: list[Any] = []
        nesting = flatten((args, kwargs), leaves)
        same = [next(k for k, y in enumerate(leaves) if y is x) for x in leaves]
        key = (
            nesting,
            *same,
            *thread_modes(),
            *[(key_of(x), isinstance(x, Tensor) and x.requires_grad) for x in leaves],
        )
        if key in self._unfit:
            return self.function(*args, **kwargs)
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        for compiled in self._compiled.get(key, ()):
            if not compiled.state.mismatch():
                return compiled(_distinct(inputs))
        if sum(map(len, self._compiled.values())) >= LIMIT:
            self._refuse(key, CaptureBreak(f"{LIMIT} graphs were compiled", None))
            return self.function(*args, **kwargs)
        return self._trace(key, leaves, args, kwargs)

    def describe(self) -> list[GraphDescription]:
        """Return the compiled graphs for a report."""
        found = [each for same in self._compiled.values() for each in same]
        return [GraphDescription(x.module, _list_operations(x.module), x.state.names()) for x in found]

    def _trace(
        self, key: tuple[Any, ...], leaves: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        ran, draws = CodeThatRan(), _draws()
        try:
            before = PythonState({"": self.function, "arguments": [args, kwargs]}, Everything(self.function))
        except TooMuchState as error:
            self._refuse(key, CaptureBreak(str(error), None))
            return self.function(*args, **kwargs)
        named = self._name_inputs(inputs, args, kwargs)
        recorder = _Recorder(before, named)
        counters = [t.counter for t in (*inputs, *before.tensors.values())]
        versions = [counter.version for counter in counters]
        with ran.watch(), recorder:
            result = self.function(*args, **kwargs)
        is_pure = draws == _draws() and versions == [counter.version for counter in counters]
        try:
            module = self._finish(recorder, before, result)
        except Unfit as error:
            self._refuse(key, recorder.refusal or CaptureBreak(str(error), None))
            return result
        example = list(named.values())
        try:
            run = self.backend(module, example)
        except RaceError:
            raise
        except Exception as error:
            raise BackendCompilerFailed(self.backend, error, None) from error
        if not callable(run):
            raise BackendCompilerFailed(self.backend, TypeError(f"it returned {run!r}, not a callable"), None)
        roots = {"": self.function} | {
            f"argument {k}": x for k, x in enumerate(leaves) if not isinstance(x, Tensor)
        }
        compiled = _Compiled(run, module, PythonState(roots, ran, with_gradients=False), result)
        self._compiled.setdefault(key, []).append(compiled)
        return compiled(example) if is_pure else result

    def _finish(self, recorder: _Recorder, state: PythonState, result: Any) -> GraphModule:
        """Return the module of a recorded graph.

        Raises:
            Unfit: If the graph cannot stand for calls.
        """
        if recorder.refusal is not None:
            raise Unfit(recorder.refusal.why)
        changes = state.changes()
        if changes:
            container, at, _ = changes[0]
            raise Unfit(f"it changes {container.path}{container.names[at] if at >= 0 else ''}")
        leaves: list[Any] = []
        flatten(result, leaves)
        for x in leaves:
            if not isinstance(x, Tensor | int | float | complex | str | bytes | type(None)):
                raise Unfit(f"it returns an object of the class {type(x).__name__}")
        recorder.graph.output(tuple([recorder.node_of(x) for x in leaves if isinstance(x, Tensor)]))
        recorder.graph.lint()
        return GraphModule(recorder.root, recorder.graph)

    def _name_inputs(
        self, inputs: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return names for the tensors among the arguments, as PyTorch names them: `l_x_` for the parameter x."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            bound = {}
        by_id = {id(value): name for name, value in bound.items() if isinstance(value, Tensor)}
        names = [f"l_{by_id.get(id(x), f'args_{k}')}_" for k, x in enumerate(_distinct(inputs))]
        return dict(zip(names, _distinct(inputs), strict=True))

    def _refuse(self, key: tuple[Any, ...], why: CaptureBreak) -> None:
        """Let calls with this key run eagerly.

        Raises:
            torch._dynamo.exc.Unsupported: With `fullgraph=True`.
        """
        self._unfit.add(key)
        self.breaks.append(why)
        name = getattr(self.function, "__qualname__", self.function)
        if is_logged("fusion"):
            log("fusion", f"{name} runs eagerly, not by the backend: {why}")
        if self.fullgraph:
            raise Unsupported(f"{name} cannot be one graph (fullgraph=True): {why}")


def _distinct(inputs: Sequence[Tensor]) -> list[Tensor]:
    return list({id(x): x for x in inputs}.values())


def _name_of_property(getter: Any) -> str:
    """Return the name of the property of Tensor to which a `__get__` belongs."""
    owner = getter.__self__
    return next(name for cls in Parameter.__mro__ for name, value in vars(cls).items() if value is owner)


def _list_operations(module: GraphModule) -> list[str]:
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    return [node.target if isinstance(node.target, str) else node.target.__name__ for node in nodes]


def _draws() -> list[Any]:
    """Return what changes if random numbers are drawn."""
    states: list[Any] = [each.philox.offset for each in generator.cuda_defaults()]
    return [*states, generator.default_cpu.state_bytes()]
