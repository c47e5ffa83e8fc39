"""`torch.fx`: programs as graphs, which can be read, changed and turned into Python code again."""

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx import _symbolic_trace, operator_schemas, proxy, tensor_type, traceback
from flambeau.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from flambeau.fx.graph import CodeGen, Graph
from flambeau.fx.graph_module import GraphModule
from flambeau.fx.interpreter import Interpreter, Transformer
from flambeau.fx.node import Node, has_side_effect, map_arg
from flambeau.fx.proxy import Proxy
from flambeau.fx.subgraph_rewriter import replace_pattern

__all__ = [
    "PH", "CodeGen", "Graph", "GraphModule", "Interpreter", "Node", "Proxy", "ProxyableClassMeta", "Tracer",
    "Transformer", "has_side_effect", "map_arg", "replace_pattern", "symbolic_trace", "wrap",
]  # fmt: skip

publish(globals())
explain_absent_names(globals(), "torch.fx")
