"""The base class of passes over GraphModules."""

from __future__ import annotations

import abc
from typing import NamedTuple

from flambeau.core.public_names import publish
from flambeau.fx.graph_module import GraphModule

__all__ = ["PassBase", "PassResult"]


class PassResult(NamedTuple):
    """The result of a pass.

    Attributes:
        graph_module: The module after the pass.
        modified: True if the pass changed it.
    """

    graph_module: GraphModule
    modified: bool


class PassBase(abc.ABC):
    """A pass: `call` does the work, `requires` and `ensures` check the module before and after it."""

    def __call__(self, graph_module: GraphModule) -> PassResult | None:
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    @abc.abstractmethod
    def call(self, graph_module: GraphModule) -> PassResult | None:
        """Run the pass."""

    def requires(self, graph_module: GraphModule) -> None:
        """Raise an error if the pass cannot run on the module."""
        return

    def ensures(self, graph_module: GraphModule) -> None:
        """Raise an error if the module lacks a property that the pass guarantees."""
        return


publish(globals())
