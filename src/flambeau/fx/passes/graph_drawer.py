"""Drawings of graphs with the package `pydot`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import Node

__all__ = ["FxGraphDrawer"]

_COLORS = {"placeholder": "AliceBlue", "call_module": "LemonChiffon1", "get_param": "Yellow2", "get_attr": "LightGrey",
           "output": "PowderBlue"}  # fmt: skip


class FxGraphDrawer:
    """A drawing of a GraphModule.

    Args:
        graph_module: The module.
        name: The name of the drawing.
        ignore_getattr: Leave reads of attributes out.
        ignore_parameters_and_buffers: Leave parameters and buffers out.
        skip_node_names_in_args: Leave nodes out of the arguments that a label shows.
        parse_stack_trace: Show the line of the program.
        dot_graph_shape: The shape of nodes. Default: "record".

    Raises:
        RuntimeError: If the package `pydot` is not installed.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        name: str,
        ignore_getattr: bool = False,
        ignore_parameters_and_buffers: bool = False,
        skip_node_names_in_args: bool = True,
        parse_stack_trace: bool = False,
        dot_graph_shape: str | None = None,
        normalize_args: bool = False,
    ) -> None:
        if find_spec("pydot") is None:
            raise RuntimeError(
                "FXGraphDrawer requires the pydot package to be installed. Please install pydot through your favorite "
                "Python package manager."
            )
        self.shape = dot_graph_shape or "record"
        self.ignore_getattr, self.parse_stack_trace = ignore_getattr, parse_stack_trace
        self._graphs = {name: self._draw(graph_module, name)}
        for path, module in graph_module.named_children():
            if isinstance(module, GraphModule):
                self._graphs[f"{name}_{path}"] = self._draw(module, f"{name}_{path}")
        self._name = name

    def get_dot_graph(self, submod_name: str | None = None) -> Any:
        """Return the `pydot` graph of the module, or of one of its submodules."""
        return self._graphs[self._name if submod_name is None else f"{self._name}_{submod_name}"]

    def get_main_dot_graph(self) -> Any:
        """Return the `pydot` graph of the module."""
        return self._graphs[self._name]

    def get_all_dot_graphs(self) -> dict[str, Any]:
        """Return all `pydot` graphs by name."""
        return self._graphs

    def _draw(self, module: GraphModule, name: str) -> Any:
        pydot = import_module("pydot")
        drawing = pydot.Dot(name, rankdir="TB")
        shown = [n for n in module.graph.nodes if not (self.ignore_getattr and n.op == "get_attr")]
        for node in shown:
            color = _COLORS.get(node.op, "white")
            drawing.add_node(
                pydot.Node(
                    node.name,
                    label=self._label(node),
                    shape=self.shape,
                    style='"filled,rounded"',
                    fillcolor=color,
                )
            )
        for node in shown:
            for user in node.users:
                drawing.add_edge(pydot.Edge(node.name, user.name))
        return drawing

    def _label(self, node: Node) -> str:
        target = node._pretty_print_target(node.target)
        text = f"name=%{node.name}|op_code={node.op}\\l|target={target}\\l|num_users={len(node.users)}\\l"
        meta = node.meta.get("tensor_meta")
        if hasattr(meta, "shape"):
            text += f"|dtype={meta.dtype}\\l|shape={tuple(meta.shape)}\\l"
        return "{" + text.replace("<", r"\<").replace(">", r"\>") + "}"


publish(globals())


explain_absent_names(globals(), "torch.fx.passes.graph_drawer")
