"""Passes over graphs."""

from flambeau.fx.passes import graph_drawer, shape_prop, split_module
from flambeau.fx.passes.infra import pass_base, pass_manager

__all__ = ["graph_drawer", "pass_base", "pass_manager", "shape_prop", "split_module"]
