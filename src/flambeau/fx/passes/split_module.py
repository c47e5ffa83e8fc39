"""Splitting a module into submodules, one for each part of its graph."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem as _getitem
from typing import Any

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule, _get_attr
from flambeau.fx.node import Node, map_arg
from flambeau.nn.modules.module import Module

__all__ = ["Partition", "split_module"]


class Partition:
    """One part of the graph.

    Attributes:
        name: What the split callback returned, as text.
        submod_name: The name of its submodule.
        node_names: Names of the nodes of the part.
        inputs: Names of the values that it uses and others define.
        outputs: Names of the values that it defines and others use.
        dependencies: Names of the parts whose values it uses.
        dependents: Names of the parts that use its values.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.submod_name = f"submod_{name}"
        self.node_names: list[str] = []
        self.inputs: dict[str, None] = {}
        self.outputs: dict[str, None] = {}
        self.dependencies: dict[str, None] = {}
        self.dependents: dict[str, None] = {}
        self.graph = Graph()
        self.environment: dict[Node, Node] = {}
        self.targets: dict[str, Any] = {}

    def __repr__(self) -> str:
        return (
            f"name: {self.name},\n nodes: {self.node_names},\n inputs: {list(self.inputs)},\n outputs: "
            f"{list(self.outputs)},\n partitions depended on: {list(self.dependencies)},\n partition dependents: "
            f"{list(self.dependents)}"
        )


def split_module(
    m: GraphModule,
    root_m: Module,
    split_callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """Return a module whose submodules `submod_0`, `submod_1`, ... are the parts of another module's graph.

    Args:
        m: The module to split.
        root_m: The module that has the submodules and attributes.
        split_callback: Returns the part of a node, such as a number. None leaves the node outside of all parts.
        qualname_map: Receives new name of a target -> former name.
        keep_original_order: Run the parts in the order in which they begin, not in order of dependency.
        keep_original_node_name: Keep the names of nodes.
        keep_original_input_name: Name the inputs of a part after the nodes that define them.
        partition_affix: Insert this text into the names of submodules.
        tuple_return: Let parts with one output return a tuple of it.

    Raises:
        RuntimeError: If the parts depend on each other in a cycle.
    """
    parts: dict[str, Partition] = {}
    nodes: dict[str, Node] = {node.name: node for node in m.graph.nodes}
    part_of: dict[Node, str] = {}
    for node in m.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        key = split_callback(node)
        if key is None:
            continue
        name = f"{partition_affix}_{key}" if partition_affix else str(key)
        part_of[node] = name
        parts.setdefault(name, Partition(name)).node_names.append(node.name)
    _connect(m.graph, parts, part_of)
    order = list(parts) if keep_original_order else _sort(parts)
    for name in order:
        _build_part(
            m, root_m, parts[name], nodes, part_of, qualname_map, keep_original_input_name, tuple_return
        )
    return _stitch(m, root_m, parts, order, part_of, tuple_return)


def _connect(graph: Graph, parts: dict[str, Partition], part_of: dict[Node, str]) -> None:
    """Record which values go from part to part."""
    for node in graph.nodes:
        for used in node.all_input_nodes:
            there, here = part_of.get(used), part_of.get(node)
            if there == here:
                continue
            if here is not None:
                parts[here].inputs.setdefault(used.name)
            if there is not None:
                parts[there].outputs.setdefault(used.name)
            if here is not None and there is not None:
                parts[here].dependencies.setdefault(there)
                parts[there].dependents.setdefault(here)


def _sort(parts: dict[str, Partition]) -> list[str]:
    """Return the names of the parts, each after those that it depends on."""
    ready = [name for name, part in parts.items() if not part.dependencies]
    waiting = {name: set(part.dependencies) for name, part in parts.items()}
    order: list[str] = []
    while ready:
        name = ready.pop(0)
        order.append(name)
        for dependent in parts[name].dependents:
            waiting[dependent].discard(name)
            if not waiting[dependent]:
                ready.append(dependent)
    if len(order) != len(parts):
        raise RuntimeError("cycle exists between partitions!")
    return order


def _build_part(
    m: GraphModule,
    root: Module,
    part: Partition,
    nodes: dict[str, Node],
    part_of: dict[Node, str],
    renamed: dict[str, str] | None,
    keeps_input_names: bool,
    returns_tuple: bool,
) -> None:
    for at, name in enumerate(part.inputs):
        source = nodes[name]
        made = part.graph.placeholder(name if keeps_input_names else f"arg_{at}", type_expr=source.type)
        made.meta = source.meta.copy()
        part.environment[source] = made
    for node in m.graph.nodes:
        if part_of.get(node) != part.name:
            continue
        args = map_arg(node.args, lambda n: part.environment[n])
        kwargs = map_arg(node.kwargs, lambda n: part.environment[n])
        target = node.target
        if node.op in ("call_module", "get_attr"):
            value = _get_attr(root, node.target)
            target = node.target.replace(".", "_")
            part.targets[target] = value
            if renamed is not None:
                renamed[f"{part.submod_name}.{target}"] = node.target
        made = part.graph.create_node(node.op, target, args, dict(kwargs), type_expr=node.type)
        made.meta = node.meta.copy()
        part.environment[node] = made
    results = tuple(part.environment[nodes[name]] for name in part.outputs)
    if results:
        part.graph.output(results if len(results) > 1 or returns_tuple else results[0])
    else:
        part.graph.output(())


def _stitch(
    m: GraphModule,
    root: Module,
    parts: dict[str, Partition],
    order: list[str],
    part_of: dict[Node, str],
    returns_tuple: bool,
) -> GraphModule:
    graph = Graph()
    values: dict[str, Node] = {}
    targets: dict[str, Any] = {}
    by_source: dict[Node, Node] = {}

    def define(node: Node, made: Node) -> None:
        made.meta = node.meta.copy()
        values[node.name], by_source[node] = made, made

    for node in m.graph.nodes:
        if node.op == "placeholder":
            define(node, graph.node_copy(node))
        elif node.op == "get_attr":
            define(node, graph.get_attr(node.target))
            targets[node.target] = _get_attr(root, node.target)
    pending = [
        n for n in m.graph.nodes if n.op not in ("placeholder", "get_attr", "output") and n not in part_of
    ]

    def copy_ready() -> None:
        while pending and all(used in by_source for used in pending[0].all_input_nodes):
            node = pending.pop(0)
            define(node, graph.node_copy(node, lambda n: by_source[n]))
            if node.op == "call_module":
                targets[node.target] = _get_attr(root, node.target)

    sources = {node.name: node for node in m.graph.nodes}
    copy_ready()
    for name in order:
        part = parts[name]
        targets[part.submod_name] = GraphModule(part.targets, part.graph)
        call = graph.call_module(part.submod_name, tuple([values[each] for each in part.inputs]))
        is_tuple = len(part.outputs) > 1 or returns_tuple
        for at, each in enumerate(part.outputs):
            define(
                sources[each], graph.create_node("call_function", _getitem, (call, at)) if is_tuple else call
            )
        copy_ready()
    for node in m.graph.nodes:
        if node.op == "output":
            graph.output(map_arg(node.args[0], lambda n: by_source[n]), type_expr=node.type)
    return GraphModule(targets, graph)


publish(globals())


explain_absent_names(globals(), "torch.fx.passes.split_module")
