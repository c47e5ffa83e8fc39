"""Running a graph node by node, and transforming graphs by doing so with proxies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.core.public_names import publish
from flambeau.fx._symbolic_trace import Tracer
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import Argument, Node, Target, map_aggregate, map_arg
from flambeau.fx.proxy import Proxy
from flambeau.fx.traceback import set_current_meta
from flambeau.nn.modules.module import Module

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """An interpreter that runs the nodes of a module's graph one by one. Subclasses override its methods.

    Args:
        module: The module, which resolves names of submodules and attributes.
        garbage_collect_values: Forget each value after its last use.
        graph: The graph. Default: that of the module.

    Attributes:
        env: Node -> value, of the nodes that have run.
    """

    def __init__(
        self, module: Module, garbage_collect_values: bool = True, graph: Graph | None = None
    ) -> None:
        self.module = module
        self.submodules = dict(module.named_modules())
        self.graph: Graph = graph if graph is not None else module.graph
        self.env: dict[Node, Any] = {}
        self.name = "Interpreter"
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        self.user_to_last_uses: dict[Node, list[Node]] = {}
        if garbage_collect_values:
            seen: set[Node] = set()
            for node in reversed(self.graph.nodes):
                for used in node.all_input_nodes:
                    if used not in seen:
                        seen.add(used)
                        self.user_to_last_uses.setdefault(node, []).append(used)

    def run(
        self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True
    ) -> Any:
        """Run the graph.

        Args:
            *args: The values of the placeholders, in order.
            initial_env: Values of nodes that need not run.
            enable_io_processing: Let the graph's code generator process arguments and results.

        Returns:
            The value of the output node.
        """
        self.env = dict(initial_env) if initial_env is not None else {}
        if enable_io_processing:
            args = self.graph.process_inputs(*args)
        self.args_iter: Iterator[Any] = iter(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    error.args = (_explain(error, node), *error.args[1:])
                    if isinstance(error, KeyError):
                        raise RuntimeError(*error.args) from error
                raise
            for used in self.user_to_last_uses.get(node, ()):
                del self.env[used]
            if node.op == "output":
                value = self.env[node]
                return self.graph.process_outputs(value) if enable_io_processing else value
        return None

    def boxed_run(self, args_list: list[Any]) -> Any:
        """Run the graph with arguments from a list, which is emptied."""
        args = list(args_list)
        args_list.clear()
        return self.run(*args, enable_io_processing=False)

    @contextmanager
    def _set_current_node(self, node: Node) -> Iterator[None]:
        with set_current_meta(node):
            yield

    def run_node(self, n: Node) -> Any:
        """Run one node and return its value."""
        with self._set_current_node(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the next argument of `run`, or the default value.

        Raises:
            RuntimeError: If neither is given.
        """
        assert isinstance(target, str)
        if target.startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise RuntimeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            ) from None

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return an attribute of the module."""
        assert isinstance(target, str)
        return self.fetch_attr(target)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function."""
        assert not isinstance(target, str)
        return target(*args, **kwargs)

    def call_method(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the first argument."""
        receiver, *rest = args
        assert isinstance(target, str)
        return getattr(receiver, target)(*rest, **kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call a submodule."""
        assert isinstance(target, str)
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the graph."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute of the module at a dotted path.

        Raises:
            RuntimeError: If there is none.
        """
        found: Any = self.module
        parts = target.split(".")
        for at, part in enumerate(parts):
            if not hasattr(found, part):
                raise RuntimeError(f"Node referenced nonexistent target {'.'.join(parts[: at + 1])}")
            found = getattr(found, part)
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments with values in place of nodes."""
        args, kwargs = self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)
        assert isinstance(args, tuple)
        return args, dict(kwargs)

    def map_nodes_to_values(self, args: Argument, n: Node) -> Argument:
        """Return `args` with values in place of nodes.

        Raises:
            RuntimeError: If one of the nodes has not run.
        """

        def load(used: Node) -> Any:
            if used not in self.env:
                raise RuntimeError(
                    f"Node {n} referenced nonexistent value {used}! Run Graph.lint() to diagnose such issues"
                )
            return self.env[used]

        return map_arg(args, load)


def _explain(error: Exception, node: Node) -> str:
    text = f"While executing {node.format_node()}"
    return f"{error.args[0]}\n\n{text}\nOriginal traceback:\n{node.stack_trace}" if error.args else text


class Transformer(Interpreter):
    """An interpreter that runs with proxies and so makes a new graph. A subclass overrides what it changes.

    Args:
        module: The GraphModule to transform.
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        graph = self.new_graph

        class TransformerTracer(Tracer):
            def __init__(self) -> None:
                super().__init__()
                self.graph = graph
                self.tensor_attrs: dict[Any, str] = {}

            def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
                return True

        self.tracer = TransformerTracer()
        self.tracer.root = module

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Proxy:
        """Create a placeholder of the new graph."""
        assert isinstance(target, str)
        default = args[:1]
        return Proxy(self.new_graph.create_node("placeholder", target, tuple(default)), self.tracer)

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Proxy:
        """Create a read of an attribute."""
        assert isinstance(target, str)
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Create a call of a submodule."""
        assert isinstance(target, str)
        return self.tracer.call_module(self.fetch_attr(target), None, args, kwargs)  # type: ignore[arg-type]

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Create a call of a function."""
        assert callable(target)
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self) -> GraphModule:
        """Return a GraphModule of the new graph."""
        result = super().run(enable_io_processing=False)
        if result is not None:
            former = self.graph.output_node()
            value = map_aggregate(result, lambda each: each.node if isinstance(each, Proxy) else each)
            node = self.new_graph.output(value)
            node.meta.update(former.meta)
        return GraphModule(self.module, self.new_graph)


publish(globals())
