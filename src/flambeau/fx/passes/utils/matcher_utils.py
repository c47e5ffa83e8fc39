"""Search for the places of a graph at which a pattern, itself a graph, occurs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from flambeau.core.public_names import publish
from flambeau.fx.graph import Graph
from flambeau.fx.node import Node
from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclass
class InternalMatch:
    """One occurrence of a pattern.

    Attributes:
        anchors: Nodes of the pattern from which the search went.
        nodes_map: Node of the pattern -> node of the graph, or a constant.
        placeholder_nodes: Nodes of the graph that are the pattern's inputs.
        returning_nodes: Nodes of the graph that are the pattern's results.
        name_node_map: Name -> node, for patterns that return names.
        other_nodes: Further nodes of the graph to keep with the match.
    """

    anchors: list[Node]
    nodes_map: dict[Node, Any] = field(default_factory=dict)
    placeholder_nodes: list[Any] = field(default_factory=list)
    returning_nodes: list[Node] = field(default_factory=list)
    name_node_map: dict[str, Node] = field(default_factory=dict)
    other_nodes: list[Node] = field(default_factory=list)

    def __copy__(self) -> InternalMatch:
        return InternalMatch(
            self.anchors, self.nodes_map.copy(), self.placeholder_nodes.copy(), self.returning_nodes.copy()
        )


class SubgraphMatcher:
    """A matcher that finds the occurrences of a pattern.

    Args:
        pattern: The graph to find. Its placeholders match anything.
        match_output: The pattern's output must be the graph's output.
        match_placeholder: The pattern's placeholders match only placeholders.
        remove_overlapping_matches: Drop matches that share nodes with an earlier one.
        ignore_literals: Constants of the pattern match any constants.
    """

    def __init__(
        self,
        pattern: Graph,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
    ) -> None:
        if len(pattern.nodes) == 0:
            raise ValueError("SubgraphMatcher cannot be initialized with an empty pattern")
        self.pattern = pattern
        self.match_output, self.match_placeholder = match_output, match_placeholder
        self.remove_overlapping_matches = remove_overlapping_matches
        self.ignore_literals = ignore_literals
        for node in pattern.nodes:
            if node.op != "output" and not node.users:
                raise AssertionError("SubgraphMatcher cannot be initialized with an pattern with dead code")
        output = next(iter(reversed(pattern.nodes)))
        self.pattern_placeholder_nodes = [n for n in pattern.nodes if n.op == "placeholder"]
        self.pattern_returning_nodes = output.all_input_nodes
        self.pattern_anchors = (
            [output] if match_output else [n for n in output.all_input_nodes if len(n.users) == 1]
        )

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """Return the occurrences of the pattern in a graph, in the order of the graph."""
        candidates = [
            (anchor, [n for n in graph.nodes if self._is_equal(anchor, n)]) for anchor in self.pattern_anchors
        ]
        found: list[InternalMatch] = []

        def search(at: int, match: InternalMatch) -> None:
            if at == len(candidates):
                match.placeholder_nodes = [match.nodes_map[n] for n in self.pattern_placeholder_nodes]
                match.returning_nodes = [match.nodes_map[n] for n in self.pattern_returning_nodes]
                found.append(match)
                return
            anchor, nodes = candidates[at]
            for node in nodes:
                attempt = copy.copy(match)
                if self._match_nodes(anchor, node, attempt):
                    search(at + 1, attempt)

        search(0, InternalMatch(self.pattern_anchors))
        found = [match for match in found if self._is_contained(match.nodes_map)]
        return self._drop_overlapping(found) if self.remove_overlapping_matches else found

    def _is_equal(self, pattern: Node, node: Node) -> bool:
        if not self.match_placeholder and pattern.op == "placeholder":
            return True
        if pattern.op != node.op:
            return False
        if pattern.op in ("placeholder", "output"):
            return True
        if pattern.op == "get_attr":
            return self._is_same_attribute(pattern, node)
        return bool(pattern.target == node.target)

    def _is_same_attribute(self, pattern: Node, node: Node) -> bool:
        one, other = _read(pattern), _read(node)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            return True
        return type(one) is type(other) and isinstance(one, Module) | (one == other)

    def _match_nodes(self, pattern: Node, node: Any, match: InternalMatch) -> bool:
        if not isinstance(node, Node):
            if pattern.op != "placeholder" or self.match_placeholder:
                return False
            if pattern in match.nodes_map:
                return bool(match.nodes_map[pattern] == node)
            match.nodes_map[pattern] = node
            return True
        if pattern in match.nodes_map:
            return match.nodes_map[pattern] is node
        if node in match.nodes_map.values() or not self._is_equal(pattern, node):
            return False
        saved = copy.copy(match)
        match.nodes_map[pattern] = node
        if pattern.op == "placeholder":
            return True
        one, other = _list_arguments(pattern, node)
        if one is None or other is None or len(one) != len(other):
            is_matched = False
        else:
            is_matched = all(self._match_values(a, b, match) for a, b in zip(one, other, strict=True))
        if not is_matched:
            match.nodes_map = saved.nodes_map
        return is_matched

    def _match_values(self, pattern: Any, value: Any, match: InternalMatch) -> bool:
        if isinstance(pattern, Node):
            return self._match_nodes(pattern, value, match)
        if isinstance(pattern, list | tuple) and isinstance(value, list | tuple):
            return len(pattern) == len(value) and all(
                self._match_values(a, b, match) for a, b in zip(pattern, value, strict=True)
            )
        if isinstance(value, Node):
            return False
        return self.ignore_literals or (type(pattern) is type(value) and pattern == value)

    def _is_contained(self, nodes_map: dict[Node, Any]) -> bool:
        """Return True if no node outside of the match uses a value of a node inside of it."""
        matched = {value: pattern for pattern, value in nodes_map.items() if isinstance(value, Node)}
        for value, pattern in matched.items():
            if pattern.op == "placeholder" or pattern in self.pattern_returning_nodes:
                continue
            if any(user not in matched for user in value.users):
                return False
        return True

    def _drop_overlapping(self, matches: list[InternalMatch]) -> list[InternalMatch]:
        kept: list[InternalMatch] = []
        used: set[Node] = set()
        for match in matches:
            own = {
                value
                for pattern, value in match.nodes_map.items()
                if pattern.op not in ("placeholder", "output") and isinstance(value, Node)
            }
            if not own & used:
                kept.append(match)
                used |= own
        return kept


def _read(node: Node) -> Any:
    found: Any = node.graph.owning_module
    for part in node.target.split("."):
        found = getattr(found, part, None)
    return found


def _list_arguments(one: Node, other: Node) -> tuple[list[Any] | None, list[Any] | None]:
    """Return the arguments of two nodes as comparable lists; None where the keywords differ."""
    if one.kwargs.keys() != other.kwargs.keys():
        return None, None
    return [*one.args, *one.kwargs.values()], [*other.args, *[other.kwargs[key] for key in one.kwargs]]


publish(globals())
