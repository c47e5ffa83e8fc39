"""GraphModule: a module whose `forward` is generated from a graph."""

from __future__ import annotations

import contextlib
import copy
import itertools
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import flambeau as torch
from flambeau.core.files import replace_file
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.codegen import PythonCode, _PyTreeCodeGen
from flambeau.fx.graph import Graph
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tensor.tensor import Tensor

__all__ = ["GraphModule", "reduce_graph_module"]

_numbers = itertools.count()
_OPERATORS = str(Path(__file__).parents[1] / "tensor") + os.sep


def _compile(code: str, space: dict[str, Any], origin: dict[str, Any] | None = None) -> FunctionType:
    """Return the function `forward` of generated code, whose lines tracebacks can show."""
    name = f"<eval_with_key>.{next(_numbers)}"
    if origin:
        name += f" from {origin['co_filename']}:{origin['co_firstlineno']} in {origin['co_name']}"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope = dict(space)
    scope["__name__"] = name
    exec(compile(code, name, "exec"), scope)
    function: FunctionType = scope["forward"]
    return function


def _copy_attr(source: Any, target: Module, path: str) -> None:
    """Copy the attribute at a dotted path; modules on the way are created."""
    *folders, name = path.split(".")
    for folder in folders:
        child = getattr(source, folder)
        if getattr(target, folder, None) is child:
            return
        if not hasattr(target, folder):
            setattr(target, folder, Module())
        source, target = child, getattr(target, folder)
    _set_value(target, name, getattr(source, name))


def _assign_attr(value: Any, target: Module, path: str) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        if not hasattr(target, folder):
            setattr(target, folder, Module())
        target = getattr(target, folder)
    _set_value(target, name, value)


def _set_value(target: Module, name: str, value: Any) -> None:
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        target.register_buffer(name, value)
    else:
        setattr(target, name, value)


def _has_attr(module: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def _get_attr(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


class _CodeOnlyModule(Module):
    """A module with the parts of a pickled GraphModule, whose code is to be traced again."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def reduce_graph_module(body: dict[Any, Any], import_block: str) -> Module:
    """Return the GraphModule that was pickled as `body`, with the imports of its code."""
    code = body.get("_code") or body["code"]
    scope: dict[str, Any] = {"torch": torch}
    imports = import_block.replace("import torch\n", "").replace("from torch", f"from {torch.__name__}")
    imports = imports.replace("import torch.", f"import {torch.__name__}.")
    exec(compile(imports, "<imports of a pickled GraphModule>", "exec"), scope)
    body = dict(body)
    name = body.pop("_graphmodule_cls_name", "GraphModule")
    graph = body.pop("_graph", None)
    module = _CodeOnlyModule(body)
    forward = _compile(code, scope)
    if graph is None:
        type(module).forward = forward  # type: ignore[method-assign]
        graph = sys.modules["flambeau.fx._symbolic_trace"].Tracer().trace(module)
    rebuilt = GraphModule(module, graph, class_name=name)
    for key, value in body.items():
        if not hasattr(rebuilt, key):
            setattr(rebuilt, key, value)
    return rebuilt


class _PickledGraph:
    """The nodes of a graph as tuples, which pickle without recursion along the list."""

    def __init__(self, graph: Graph) -> None:
        number = {node: at for at, node in enumerate(graph.nodes)}

        def refer(value: Any) -> Any:
            return torch.fx.map_arg(value, lambda n: _Reference(number[n]))

        self.rows = [
            (n.op, n.target, refer(n.args), refer(n.kwargs), n.name, n.type, _keep_picklable(n.meta))
            for n in graph.nodes
        ]
        self.codegen, self.tracer_cls = graph._codegen, graph._tracer_cls
        if self.tracer_cls is not None and "<locals>" in self.tracer_cls.__qualname__:
            self.tracer_cls = None

    def restore(self) -> Graph:
        graph = Graph(tracer_cls=self.tracer_cls)
        nodes: list[Any] = []

        def resolve(value: Any) -> Any:
            return torch.fx.node.map_aggregate(
                value, lambda each: nodes[each.number] if isinstance(each, _Reference) else each
            )

        for op, target, args, kwargs, name, kind, meta in self.rows:
            node = graph.create_node(op, target, resolve(args), dict(resolve(kwargs)), name, kind)
            node.meta = meta
            nodes.append(node)
        graph._codegen = self.codegen
        return graph


class _Reference:
    """The number of a node in a pickled graph."""

    def __init__(self, number: int) -> None:
        self.number = number


def _keep_picklable(meta: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key in ("tensor_meta", "stack_trace", "is_wrapped")}


def _restore_graph_module(body: dict[str, Any], rows: _PickledGraph, name: str) -> Module:
    module = _CodeOnlyModule(dict(body))
    rebuilt = GraphModule(module, rows.restore(), class_name=name)
    for key, value in body.items():
        if key not in rebuilt.__dict__:
            rebuilt.__dict__[key] = value
    rebuilt.training = body.get("training", True)
    return rebuilt


class GraphModule(Module):
    """A module whose `forward` is generated from `graph`. After a change of the graph call `recompile()`.

    Args:
        root: A module, or a dict from dotted names, that has the submodules and attributes that the graph refers to.
        graph: The graph.
        class_name: The name that the module shows.

    Raises:
        RuntimeError: If `root` is neither, or lacks something that the graph refers to.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> GraphModule:
        # Each object has its own class, so that `forward` is a method for `copy`, `help` and hooks.
        for base in cls.__mro__:
            if base.__qualname__.endswith("GraphModuleImpl"):
                continue
            cls = base
            break

        class GraphModuleImpl(cls):  # type: ignore[misc, valid-type]
            pass

        GraphModuleImpl.__module__ = GraphModule.__module__
        made: GraphModule = super().__new__(GraphModuleImpl)
        return made

    def __init__(self, root: Module | dict[str, Any], graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__()
        type(self).__name__ = class_name
        if isinstance(root, Module):
            if hasattr(root, "training"):
                self.training = root.training
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module"):
                    _copy_attr(root, self, node.target)
        elif isinstance(root, dict):
            targets = [node for node in graph.nodes if node.op in ("get_attr", "call_module")]
            for node in targets:
                if node.target not in root:
                    raise RuntimeError(
                        f"Node {node} referenced target {node.target} but that target was not provided in ``root``!"
                    )
            for target in sorted(dict.fromkeys(n.target for n in targets), key=lambda name: name.count(".")):
                _assign_attr(root[target], self, target)
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.meta: dict[str, Any] = {}
        self._replace_hooks: list[Callable[..., object]] = []
        self._create_node_hooks: list[Callable[..., object]] = []
        self._erase_node_hooks: list[Callable[..., object]] = []
        self._deepcopy_hooks: list[Callable[..., object]] = []
        self.shape_env = None
        self._tracer_cls = graph._tracer_cls
        self._tracer_extras: dict[str, Any] = graph._tracer_extras or {}
        self.graph = graph
        if isinstance(root, Module):
            self.meta = dict(getattr(root, "meta", None) or {})

    @property
    def graph(self) -> Graph:
        """Return the graph. Assigning another one recompiles."""
        return self._graph

    @graph.setter
    def graph(self, g: Graph) -> None:
        assert isinstance(g, Graph), f"Expected a Graph instance, but got {type(g)}"
        self._graph = g
        g.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """Return the Python code of `forward`."""
        return self._code

    def recompile(self) -> PythonCode:
        """Generate `forward` again from the graph."""
        codegen = self._graph._codegen
        if isinstance(codegen, _PyTreeCodeGen):
            self._in_spec = codegen.pytree_info.in_spec
            self._out_spec = codegen.pytree_info.out_spec
        code = self._graph.python_code(root_module="self")
        self._code = code.src
        cls: Any = type(self)
        cls.forward = _compile(code.src, code.globals, self._graph._co_fields)
        self._globals = list(code.globals)
        if "_call_of_base" not in vars(cls):
            cls._call_of_base = vars(cls).get("__call__")
            cls.__call__ = _call_graph_module
        return code

    # -- submodules ---------------------------------------------------------------------------------

    def add_submodule(self, target: str, m: Module) -> bool:
        """Add a submodule at a dotted path; modules on the way are created.

        Returns:
            False if an attribute on the way is not a module.
        """
        *folders, name = target.split(".")
        module: Module = self
        for folder in folders:
            if not hasattr(module, folder):
                setattr(module, folder, Module())
            child = getattr(module, folder)
            if not isinstance(child, Module):
                return False
            module = child
        module.add_module(name, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Delete the submodule at a dotted path.

        Returns:
            False if there is none.
        """
        *folders, name = target.split(".")
        module: Module = self
        for folder in folders:
            child = getattr(module, folder, None)
            if not isinstance(child, Module):
                return False
            module = child
        if not isinstance(getattr(module, name, None), Module):
            return False
        delattr(module, name)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Delete the submodules that the graph does not refer to."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = node.target.split(".")
                used.update(".".join(parts[: at + 1]) for at in range(len(parts)))
                if node.op == "call_module":
                    with contextlib.suppress(AttributeError):
                        inner = self.get_submodule(node.target)
                        used.update(f"{node.target}.{name}" for name, _ in inner.named_modules() if name)
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    # -- hooks --------------------------------------------------------------------------------------

    def _register_replace_node_hook(self, f: Callable[..., object]) -> None:
        self._replace_hooks.append(f)

    def _unregister_replace_node_hook(self, f: Callable[..., object]) -> None:
        self._replace_hooks.remove(f)

    @contextlib.contextmanager
    def _set_replace_hook(self, f: Callable[..., object]) -> Iterator[None]:
        self._register_replace_node_hook(f)
        try:
            yield
        finally:
            self._unregister_replace_node_hook(f)

    def _register_create_node_hook(self, f: Callable[..., object]) -> None:
        self._create_node_hooks.append(f)

    def _unregister_create_node_hook(self, f: Callable[..., object]) -> None:
        self._create_node_hooks.remove(f)

    def _register_erase_node_hook(self, f: Callable[..., object]) -> None:
        self._erase_node_hooks.append(f)

    def _unregister_erase_node_hook(self, f: Callable[..., object]) -> None:
        self._erase_node_hooks.remove(f)

    # -- copies -------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        body = self.__dict__.copy()
        rows = _PickledGraph(body.pop("_graph"))
        return (_restore_graph_module, (body, rows, type(self).__name__))

    def _deepcopy_init(self) -> Callable[..., None]:
        return GraphModule.__init__

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        """Return a copy with copies of the graph, the submodules and the attributes."""
        rebuilt = type(self).__new__(type(self))
        memo[id(self)] = rebuilt
        body = {name: value for name, value in self.__dict__.items() if name != "_graph"}
        root = _CodeOnlyModule(copy.deepcopy(body, memo))
        self._deepcopy_init()(rebuilt, root, copy.deepcopy(self._graph, memo), type(self).__name__)
        for name, value in vars(root).items():
            if name not in rebuilt.__dict__ or name == "meta":
                rebuilt.__dict__[name] = value
        rebuilt.meta = dict(self.meta)
        return rebuilt

    def __copy__(self) -> GraphModule:
        copied = GraphModule(self, self.graph, type(self).__name__)
        copied.meta = dict(self.meta)
        return copied

    # -- text ---------------------------------------------------------------------------------------

    def __str__(self) -> str:
        hint = "# To see more debug info, please use `graph_module.print_readable()`"
        return "\n".join([super().__str__(), self._code, hint])

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        *,
        fast_sympy_print: bool = False,
        expanded_def: bool = False,
        additional_meta: list[str] | None = None,
    ) -> str:
        """Return the code of this module and of the GraphModules within, and print it if `print_output` is True."""
        text = _describe_module(self, type(self).__name__, expanded_def)
        if print_output:
            print(text)
        return text

    def to_folder(self, folder: str | os.PathLike[str], module_name: str = "FxModule") -> None:
        """Write the module as a Python package with its parameters.

        Args:
            folder: Where to write; it is created.
            module_name: The name of the class.
        """
        place = Path(folder)
        place.mkdir(exist_ok=True)
        torch.save(self.state_dict(), place / "state_dict.pt")
        lines = ["import torch", "from torch.nn import *", "", f"class {module_name}(torch.nn.Module):"]
        lines += ["    def __init__(self):", "        super().__init__()"]
        for name, child in self.named_children():
            torch.save(child, place / f"{name}.pt")
            lines.append(
                f"        setattr(self, {name!r}, torch.load(r'{place / name}.pt', weights_only=False))"
            )
        for name, tensor in (*self._buffers.items(), *self._parameters.items()):
            if tensor is None:
                continue
            make = f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype})"
            if isinstance(tensor, Parameter):
                lines.append(f"        self.register_parameter('{name}', torch.nn.Parameter({make}))")
            else:
                lines.append(f"        self.register_buffer('{name}', {make})")
        lines.append(f"        self.load_state_dict(torch.load(r'{place}/state_dict.pt'))")
        body = self.code.replace("\n", "\n    ")
        replace_file(place / "module.py", "\n".join(lines) + "\n    " + body + "\n")
        replace_file(place / "__init__.py", "from .module import *")


def _call_graph_module(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the module; an error in generated code prints which line of it failed."""
    cls = type(self)
    try:
        if cls._call_of_base is not None:
            return cls._call_of_base(self, *args, **kwargs)
        return super(cls, self).__call__(*args, **kwargs)
    except Exception as error:
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OPERATORS)
        ]
        if frames and frames[-1].filename.startswith("<eval_with_key>"):
            _print_failure(frames[-1].filename, frames[-1].lineno or 0)
            raise error.with_traceback(None) from None
        raise


def _print_failure(name: str, number: int) -> None:
    lines = [line.rstrip("\n") for line in linecache.cache[name][2]]  # type: ignore[index]
    before, after = "\n".join(lines[max(0, number - 3) : number]), "\n".join(lines[number : number + 2])
    arrow = "~" * len(lines[number - 1]) + "~~~ <--- HERE"
    head = f"Call using an FX-traced Module, line {number} of the traced Module's generated forward function:"
    print("\n".join([traceback.format_exc(), head, before, "\n" + arrow, after, "\n"]), file=sys.stderr)


def _describe_module(module: GraphModule, name: str, expanded_def: bool = False) -> str:
    code = module.graph.python_code(root_module="self", verbose=True, expanded_def=expanded_def).src
    body = "\n".join("    " + line if line.strip() else "" for line in code.lstrip("\n").split("\n"))
    text = f"class {name}(torch.nn.Module):\n{body}"
    for child_name, child in module.named_children():
        if isinstance(child, GraphModule):
            inner = _describe_module(child, child_name, expanded_def)
            text += "\n" + "\n".join("    " + line if line.strip() else "" for line in inner.split("\n"))
    return text


publish(globals())


explain_absent_names(globals(), "torch.fx.graph_module")
