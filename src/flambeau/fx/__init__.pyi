# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.fx."""


from flambeau.fx.codegen import CodeGen as CodeGen
from flambeau.fx.graph import Graph as Graph
from flambeau.fx.graph_module import GraphModule as GraphModule
from flambeau.fx.interpreter import Interpreter as Interpreter
from flambeau.fx.node import Node as Node
from flambeau.fx._symbolic_trace import PH as PH
from flambeau.fx.proxy import Proxy as Proxy
from flambeau.fx._symbolic_trace import ProxyableClassMeta as ProxyableClassMeta
from flambeau.fx._symbolic_trace import Tracer as Tracer
from flambeau.fx.interpreter import Transformer as Transformer
from flambeau.fx import call_forms as call_forms
from flambeau.fx import codegen as codegen
from flambeau.fx import graph as graph
from flambeau.fx import graph_module as graph_module
from flambeau.fx.node import has_side_effect as has_side_effect
from flambeau.fx import immutable_collections as immutable_collections
from flambeau.fx import interpreter as interpreter
from flambeau.fx.node import map_arg as map_arg
from flambeau.fx import node as node
from flambeau.fx import operator_schemas as operator_schemas
from flambeau.fx import passes as passes
from flambeau.fx import proxy as proxy
from flambeau.fx import qualified_names as qualified_names
from flambeau.fx.subgraph_rewriter import replace_pattern as replace_pattern
from flambeau.fx import subgraph_rewriter as subgraph_rewriter
from flambeau.fx._symbolic_trace import symbolic_trace as symbolic_trace
from flambeau.fx import tensor_type as tensor_type
from flambeau.fx import traceback as traceback
from flambeau.fx import value_names as value_names
from flambeau.fx._symbolic_trace import wrap as wrap

