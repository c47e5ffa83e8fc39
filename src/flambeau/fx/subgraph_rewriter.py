"""Replacement of patterns in graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flambeau.core.public_names import publish
from flambeau.fx._symbolic_trace import symbolic_trace
from flambeau.fx.graph import Graph
from flambeau.fx.graph_module import GraphModule, _get_attr, _has_attr, _set_value
from flambeau.fx.node import Node
from flambeau.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher
from flambeau.nn.modules.module import Module

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

Filter = Callable[[InternalMatch, Graph, Graph], bool]


class Match(NamedTuple):
    """One occurrence of a pattern.

    Attributes:
        anchor: The pattern's last operation.
        nodes_map: Node of the pattern -> node of the graph.
    """

    anchor: Node
    nodes_map: dict[Node, Node]


@dataclass
class ReplacedPatterns:
    """One replaced occurrence of a pattern.

    Attributes:
        anchor: The pattern's last operation.
        nodes_map: Node of the pattern -> node of the former graph.
        replacements: The new nodes.
    """

    anchor: Node
    nodes_map: dict[Node, Node]
    replacements: list[Node]


def replace_pattern(gm: GraphModule, pattern: Any, replacement: Any) -> list[Match]:
    """Replace each occurrence of a pattern that does not overlap an earlier occurrence.

    Args:
        gm: The module, which is changed and recompiled.
        pattern: A function or GraphModule. Its parameters match anything.
        replacement: A function or GraphModule with the same parameters.

    Returns:
        The occurrences.
    """
    done = _replace(gm, pattern, replacement)
    return [Match(anchor=each.anchor, nodes_map=each.nodes_map) for each in done]


def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Any,
    replacement: Any = None,
    match_filters: list[Filter] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Callable[[InternalMatch, Graph, Graph], Graph] | None = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    """Replace each occurrence of a pattern for which all filters return True.

    Args:
        gm: The module, which is changed and recompiled.
        pattern: A function, Graph or GraphModule.
        replacement: What to put in its place, with the same parameters.
        match_filters: Functions of the match, the graph and the pattern.
        ignore_literals: Constants of the pattern match any constants.
        replacement_callback: Returns the replacement for one match.
        node_name_match: Match only nodes whose name contains this text.

    Returns:
        The occurrences, with the new nodes.
    """
    return _replace(
        gm, pattern, replacement, match_filters, ignore_literals, replacement_callback, node_name_match
    )


def _trace(function: Any) -> Graph:
    if isinstance(function, GraphModule):
        return function.graph
    return function if isinstance(function, Graph) else symbolic_trace(function).graph


def _replace(
    gm: GraphModule,
    pattern: Any,
    replacement: Any,
    filters: list[Filter] | None = None,
    ignore_literals: bool = False,
    callback: Callable[..., Graph] | None = None,
    name_match: str = "",
) -> list[ReplacedPatterns]:
    original, pattern_graph = gm.graph, _trace(pattern)
    matcher = SubgraphMatcher(pattern_graph, ignore_literals=ignore_literals)
    matches = [
        match
        for match in matcher.match(original)
        if all(accept(match, original, pattern_graph) for accept in filters or ())
        and (not name_match or any(name_match in getattr(n, "name", "") for n in match.nodes_map.values()))
    ]
    fixed = None if callback is not None else _trace(replacement)
    changed: dict[Node, Node] = {}
    done = []
    for match in matches:
        graph = fixed if fixed is not None else callback(match, original, pattern_graph)  # type: ignore[misc]
        done.append(_replace_match(gm, match, graph, changed))
    gm.recompile()
    for source in (replacement, fixed.owning_module if fixed is not None else None):
        if isinstance(source, Module):
            _copy_attributes(gm, source)
    return done


def _replace_match(
    gm: GraphModule, match: InternalMatch, graph: Graph, changed: dict[Node, Node]
) -> ReplacedPatterns:
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    if len(placeholders) != len(match.placeholder_nodes):
        raise AssertionError("match.placeholder_nodes and replacement_placeholders have different lengths")
    values: dict[Node, Any] = {}
    for placeholder, given in zip(placeholders, match.placeholder_nodes, strict=True):
        values[placeholder] = changed.get(given, given) if isinstance(given, Node) else given
    for node, given in match.nodes_map.items():
        if node.op == "placeholder" and isinstance(given, Node):
            match.nodes_map[node] = changed.get(given, given)
    users = {user for node in match.returning_nodes for user in node.users}
    if users:
        first = next(n for n in gm.graph.nodes if n in users)
    else:
        first = match.returning_nodes[-1].next
    with gm.graph.inserting_before(first):
        result = gm.graph.graph_copy(graph, values)
    results = (result,) if isinstance(result, Node) else tuple(result)
    given_nodes = {id(match.nodes_map[n]) for n in match.nodes_map if n.op == "placeholder"}
    made = [values[n] for n in graph.nodes if n in values and n not in placeholders]
    if len(results) != len(match.returning_nodes):
        raise AssertionError(
            f"the pattern returns {len(match.returning_nodes)} values but the replacement {len(results)}"
        )
    for old, new in zip(match.returning_nodes, results, strict=True):
        old.replace_all_uses_with(new)
        changed[old] = new
    for node in reversed(match.nodes_map):
        matched = match.nodes_map[node]
        is_input = node.op == "placeholder" or id(matched) in given_nodes
        if isinstance(matched, Node) and node.op != "output" and not is_input and not matched.users:
            gm.graph.erase_node(matched)
    _erase_rest(gm, match)
    return ReplacedPatterns(match.anchors[0], match.nodes_map, made)


def _erase_rest(gm: GraphModule, match: InternalMatch) -> None:
    inner = [
        value
        for node, value in match.nodes_map.items()
        if isinstance(value, Node) and node.op not in ("placeholder", "output") and not value._erased
    ]
    for value in sorted(inner, reverse=True):
        if not value.users and not value._erased:
            gm.graph.erase_node(value)


def _copy_attributes(gm: GraphModule, source: Module) -> None:
    """Copy the attributes that the replacement's nodes use, and drop submodules that no node uses any more."""
    gm.delete_all_unused_submodules()
    for node in gm.graph.nodes:
        if node.op not in ("call_module", "get_attr") or _has_attr(gm, node.target):
            continue
        if not _has_attr(source, node.target):
            raise RuntimeError(
                f'Attempted to create a "{node.op}" node during subgraph rewriting with target {node.target}, but the '
                "referenced attribute does not exist in the replacement GraphModule"
            )
        value = _get_attr(source, node.target)
        if isinstance(value, Module):
            gm.add_submodule(node.target, copy.deepcopy(value))
            continue
        path, _, name = node.target.rpartition(".")
        if path:
            gm.add_submodule(path, Module())
        _set_value(gm.get_submodule(path), name, value)
    gm.graph.lint()


publish(globals())
