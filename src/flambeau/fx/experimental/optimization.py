"""Fusing convolutions with batch norms for inference, and related changes of modules."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import flambeau as torch
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx._symbolic_trace import symbolic_trace
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.node import Argument, Node, Target
from flambeau.nn.modules import batchnorm, conv, dropout
from flambeau.nn.modules.module import Module
from flambeau.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["extract_subgraph", "fuse", "matches_module_pattern", "remove_dropout", "replace_node_module"]

_PATTERNS = (
    (conv.Conv1d, batchnorm.BatchNorm1d),
    (conv.Conv2d, batchnorm.BatchNorm2d),
    (conv.Conv3d, batchnorm.BatchNorm3d),
)


def _parent_name(target: str) -> tuple[str, str]:
    parent, _, name = target.rpartition(".")
    return parent, name


def matches_module_pattern(pattern: Iterable[type], node: Node, modules: dict[str, Any]) -> bool:
    """Return True if a node and its first input are calls of modules of two classes, input first."""
    if not node.args:
        return False
    for expected, current in zip(pattern, (node.args[0], node), strict=True):
        if not isinstance(current, Node) or current.op != "call_module":
            return False
        if type(modules.get(current.target)) is not expected:
            return False
    return True


def replace_node_module(node: Node, modules: dict[str, Any], new_module: Module) -> None:
    """Replace the module that a node calls by another one."""
    parent, name = _parent_name(node.target)
    modules[node.target] = new_module
    setattr(modules[parent], name, new_module)


def fuse(model: Module, inplace: bool = False, no_trace: bool = False) -> Module:
    """Return a module in which each convolution has absorbed the batch norm that follows it. For inference only.

    Args:
        model: The module in evaluation mode.
        inplace: Change `model` instead of a copy.
        no_trace: `model` is a GraphModule already.
    """
    model = model if inplace else copy.deepcopy(model)
    traced = model if no_trace and isinstance(model, GraphModule) else symbolic_trace(model)
    modules: dict[str, Any] = dict(traced.named_modules())
    graph = copy.deepcopy(traced.graph)
    for pattern in _PATTERNS:
        for node in graph.nodes:
            if not matches_module_pattern(pattern, node, modules) or len(node.args[0].users) > 1:
                continue
            first, second = modules[node.args[0].target], modules[node.target]
            if not second.track_running_stats:
                continue
            replace_node_module(node.args[0], modules, fuse_conv_bn_eval(first, second))
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return GraphModule(traced, graph)


def remove_dropout(model: Module) -> Module:
    """Return a module without its Dropout submodules."""
    traced = symbolic_trace(model)

    class DropoutRemover(torch.fx.Transformer):
        def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
            if isinstance(self.submodules[target], dropout.Dropout):
                return args[0]
            return super().call_module(target, args, kwargs)

    return DropoutRemover(traced).transform()


def extract_subgraph(
    orig_module: Module, nodes: list[Node], inputs: list[Node], outputs: list[Node]
) -> Module:
    """Return a module of some nodes of a graph, with given inputs and outputs."""
    graph = Graph()
    values: dict[Node, Node] = {each: graph.placeholder(each.name) for each in inputs}
    for node in nodes:
        values[node] = graph.node_copy(node, lambda n: values[n])
    graph.output([values[each] for each in outputs])
    graph.lint()
    return GraphModule(orig_module, graph)


publish(globals())
explain_absent_names(globals(), "torch.fx.experimental.optimization")
