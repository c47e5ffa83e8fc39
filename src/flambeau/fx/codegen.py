"""Python code of graphs.

# Note [Generated code]
The text equals PyTorch's, because libraries and tests read it: one statement per node, then `name = None` for the
values that no later node uses. Objects that the text names are in `PythonCode.globals`.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import flambeau as torch
from flambeau._library.user_operators import OpOverload, OpOverloadPacket
from flambeau.core.public_names import publish
from flambeau.fx.node import Argument, Node
from flambeau.fx.qualified_names import name_function, public_name, qualify_type
from flambeau.fx.value_names import CUSTOM_BUILTINS, Namespace
from flambeau.utils import _pytree as pytree

if TYPE_CHECKING:
    pass

__all__ = ["CodeGen", "PythonCode", "_PyTreeCodeGen", "_PyTreeInfo"]

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "lshift": "<<", "rshift": ">>",
    "and_": "&", "or_": "|", "xor": "^", "matmul": "@", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "gt": ">",
    "le": "<=", "ge": ">=",
}  # fmt: skip
_UNARY = {"pos": "+", "neg": "-", "invert": "~"}
_INPLACE = {
    "iadd": "+=", "iand": "&=", "ifloordiv": "//=", "ilshift": "<<=", "imod": "%=", "imul": "*=", "imatmul": "@=",
    "ior": "|=", "ipow": "**=", "irshift": ">>=", "isub": "-=", "itruediv": "/=", "ixor": "^=", "setitem": "",
}  # fmt: skip
magic_methods = (
    {"getitem": "{}[{}]"}
    | {name: f"{{}} {sign} {{}}" for name, sign in _BINARY.items()}
    | {name: f"{sign}{{}}" for name, sign in _UNARY.items()}
)
inplace_methods = {name: f"{{}} {sign} {{}}" for name, sign in _INPLACE.items()} | {"setitem": "{}[{}] = {}"}


class PythonCode:
    """The Python source of a graph.

    Attributes:
        src: The text of the function `forward`.
        globals: Name -> object that the text names.
    """

    def __init__(self, src: str, globals: dict[str, Any]) -> None:
        self.src, self.globals = src, globals
        self._lineno_map: dict[int, int | None] | None = None
        self._prologue_start = 0


class _PyTreeInfo(NamedTuple):
    """The nesting of a function's arguments and results."""

    orig_args: list[str]
    in_spec: Any
    out_spec: Any


class CodeGen:
    """A writer of a graph's code. Subclasses change the signature, and the processing of inputs and results."""

    def __init__(self) -> None:
        self._body_transformer: Callable[[list[str]], list[str]] | None = None
        self._func_name = "forward"

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the line `def forward(...):`."""
        args = list(free_vars)
        if not args or args[0] != "self":
            args.insert(0, "self")
        if expanded_def:
            lines = "".join(f"    {each},\n" for each in args)
            return f"def {self._func_name}(\n{lines}){maybe_return_annotation}:"
        return f"def {self._func_name}({', '.join(args)}){maybe_return_annotation}:"

    def generate_output(self, output_args: Argument, *, descs: Any = None) -> str:
        """Return the statement that returns the result."""
        return f"return {_quote(output_args)}"

    def process_inputs(self, *args: Any) -> Any:
        """Return the values of the placeholders, given the arguments of a call."""
        return args

    def process_outputs(self, outputs: Any) -> Any:
        """Return the result of a call, given the value of the output node."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return names and values that the code of a subclass needs in addition."""
        return []

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: Namespace, *, verbose: bool = False, **options: Any
    ) -> PythonCode:
        return _Writer(self, nodes, root_module, namespace, verbose, options).write()


class _PyTreeCodeGen(CodeGen):
    """Code of a function whose arguments and results are nested containers."""

    def __init__(self, pytree_info: _PyTreeInfo) -> None:
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *inputs: Any) -> Any:
        return pytree.tree_leaves(inputs)

    def process_outputs(self, out: Any) -> Any:
        if not isinstance(out, list | tuple):
            out = [out]
        assert self.pytree_info.out_spec is not None
        return pytree.tree_unflatten(out, self.pytree_info.out_spec)

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        given = self.pytree_info.orig_args
        names = list(given)
        if not names or names[0] != "self":
            names.insert(0, "self")
        head = super().gen_fn_def(names, maybe_return_annotation, expanded_def=expanded_def)
        if not free_vars:
            return head
        bare = [each.partition(":")[0].partition("=")[0].strip() for each in free_vars]
        taken = ", ".join(name for name in given if name != "self")
        typed = [f"{each.partition('=')[0].strip()}; " for each in free_vars if ":" in each]
        return (
            f"{head}\n    {''.join(typed)}{', '.join(bare)}, = "
            f"fx_pytree.tree_flatten_spec([{taken}], self._in_spec)"
        )

    def generate_output(self, output_args: Argument, *, descs: Any = None) -> str:
        if self.pytree_info.out_spec is None:
            return super().generate_output(output_args)
        return f"return pytree.tree_unflatten({_quote(output_args)}, self._out_spec)"


class _Writer:
    """The state of one generation of code."""

    def __init__(
        self,
        codegen: CodeGen,
        nodes: Any,
        root: str,
        namespace: Namespace,
        verbose: bool,
        options: dict[str, Any],
    ):
        self.codegen, self.nodes, self.root, self.namespace = codegen, nodes, root, namespace
        self.verbose, self.options = verbose, options
        self.free_vars: list[str] = []
        self.globals: dict[str, Any] = {}
        self.wrapped: dict[str, None] = {}
        self.returns = ""
        self.last_trace: str | None = None
        for name, (_, value) in CUSTOM_BUILTINS.items():
            self.add_global(name, value)
        for name, value in codegen.additional_globals():
            self.add_global(name, value)

    def write(self) -> PythonCode:
        released = self.find_last_uses()
        body: list[str] = []
        for node in self.nodes:
            if self.verbose and node.op not in ("placeholder", "output"):
                body.append(self.write_origin(node, "\n" if body else ""))
            statement = self.write_node(node)
            if statement is not None:
                body.append(statement + self.write_release(node, released))
        if not len(self.nodes):
            body.append("pass\n")
        if self.codegen._body_transformer:
            body = self.codegen._body_transformer(body)
        # Only now are all of the free variables known.
        head = self.codegen.gen_fn_def(
            self.free_vars, self.returns, expanded_def=self.options.get("expanded_def", False)
        )
        wraps = "\n".join(f'torch.fx._symbolic_trace.wrap("{name}")' for name in self.wrapped)
        text = "\n".join("    " + line for line in "".join(body).split("\n"))
        code = PythonCode(f"\n{wraps}\n\n{head}\n{text}", self.globals)
        first = code.src[: code.src.index(text)].count("\n") if text else 0
        code._prologue_start = first
        return code

    # -- names --------------------------------------------------------------------------------------

    def add_global(self, hint: str, value: Any) -> str:
        """Return the expression by which the generated code refers to an object, and add the object to the globals."""
        if _is_from_torch(value) and value is not torch.device:
            return name_function(value) if not isinstance(value, type) else qualify_type(value)
        name = self.namespace.create_name(hint.replace(".", "_"), value if _is_hashable(value) else None)
        self.globals.setdefault(name, value)
        return name

    def name_type(self, kind: Any) -> str:
        """Return the expression of a type annotation."""
        if kind == ():
            return "()"
        text = qualify_type(kind)
        origin = getattr(kind, "__origin__", None)
        if isinstance(kind, types.UnionType):
            return "|".join([self.name_type(each) for each in kind.__args__])
        if origin is None:
            return self.add_global(_repair(text), kind)
        outer = _TYPING.get(origin, origin) if not isinstance(kind, types.GenericAlias) else origin
        name = self.add_global(_repair(qualify_type(outer)), outer)
        args = getattr(kind, "__args__", ())
        return f"{name}[{','.join([self.name_type(each) for each in args])}]" if args else name

    # -- statements ---------------------------------------------------------------------------------

    def find_last_uses(self) -> dict[Node, list[Node]]:
        """Return, for each node, the values of which it is the last user."""
        last: dict[Node, Node] = {}
        released: dict[Node, list[Node]] = {}
        for user in reversed(list(self.nodes)):
            for used in user._input_nodes:
                if used not in last:
                    last[used] = user
                    released.setdefault(user, []).append(used)
        return released

    def write_release(self, node: Node, released: dict[Node, list[Node]]) -> str:
        if node.op in ("placeholder", "output"):
            return "\n" if node.op == "placeholder" else ""
        done = list(released.get(node, ()))
        if not node.users:
            done.append(node)
        return f";  {' = '.join([repr(n) for n in done])} = None\n" if done else "\n"

    def write_origin(self, node: Node, blank: str) -> str:
        """Return a comment with the program's line that created the node, if it differs from that of the preceding
        node.
        """
        trace = node.stack_trace or ""
        if trace == self.last_trace:
            return ""
        self.last_trace = trace
        if not trace:
            return f"{blank}# No stacktrace found for following nodes\n"
        found = re.findall(r'File "(.+)", line (\d+), in (.+)\n +(.+)', trace)
        return (
            f"\n# File: {found[-1][0]}:{found[-1][1]} in {found[-1][2]}, code: {found[-1][3]}\n"
            if found
            else ""
        )

    def write_node(self, node: Node) -> str | None:
        annotation = "" if node.type is None else f" : {self.name_type(node.type)}"
        if self.verbose and node.op != "output":
            annotation = _describe_value(node) or annotation
        return getattr(self, f"write_{node.op}")(node, annotation)

    def write_placeholder(self, node: Node, annotation: str) -> str | None:
        default = f" = {_quote(node.args[0])}" if node.args else ""
        self.free_vars.append(f"{node.target}{annotation}{default}")
        raw = node.target.replace("*", "")
        return f"{node!r} = {raw}" if raw != repr(node) else None

    def write_call_method(self, node: Node, annotation: str) -> str:
        call = f"{_attribute(_quote(node.args[0]), node.target)}({_format_args(node.args[1:], node.kwargs)})"
        return f"{node!r}{annotation} = {call}"

    def write_call_function(self, node: Node, annotation: str) -> str:
        function = node.target
        if getattr(function, "__module__", None) == "_operator":
            if function.__name__ in magic_methods:
                values = [_quote(each) for each in node.args]
                return f"{node!r}{annotation} = {magic_methods[function.__name__].format(*values)}"
            if function.__name__ in inplace_methods:
                values = [_quote(each) for each in node.args]
                change = inplace_methods[function.__name__].format(*values)
                return f"{change};  {node!r}{annotation} = {values[0]}"
        expression = self.add_global(_hint_name(function), function)
        if function is getattr and len(node.args) == 2 and str(node.args[1]).isidentifier():
            return f"{node!r}{annotation} = {_attribute(_quote(node.args[0]), node.args[1])}"
        if node.meta.get("is_wrapped", False):
            self.wrapped.setdefault(expression)
        return f"{node!r}{annotation} = {expression}({_format_args(node.args, node.kwargs)})"

    def write_call_module(self, node: Node, annotation: str) -> str:
        call = f"{_attribute(self.root, node.target)}({_format_args(node.args, node.kwargs)})"
        return f"{node!r}{annotation} = {call}"

    def write_get_attr(self, node: Node, annotation: str) -> str:
        return f"{node!r}{annotation} = {_attribute(self.root, node.target)}"

    def write_output(self, node: Node, annotation: str) -> str:
        if node.type is not None:
            self.returns = f" -> {self.name_type(node.type)}"
        return self.codegen.generate_output(node.args[0]) + "\n"


_TYPING = {
    getattr(typing, name).__origin__: getattr(typing, name)
    for name in ("List", "Dict", "Tuple", "Set", "FrozenSet")
}


def _hint_name(function: Callable[..., Any]) -> str:
    """Return the name that the code wishes to give a function."""
    if getattr(function, "__module__", None) == "_operator":
        return f"_operator.{function.__name__}"
    return name_function(function).removeprefix("builtins.")


def _repair(text: str) -> str:
    return re.sub(r"[^0-9a-zA-Z_.]+", "_", "_" if text == "..." else text)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_from_torch(value: Any) -> bool:
    """Return True if the code can name an object as an attribute of `torch`."""
    module = getattr(value, "__module__", None)
    if module is None or not isinstance(value, type | types.FunctionType | OpOverload | OpOverloadPacket):
        return False
    root = public_name(module).partition(".")[0]
    return root == "torch" and _resolve(
        qualify_type(value) if isinstance(value, type) else name_function(value)
    )


def _resolve(path: str) -> bool:
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
        if found is None:
            return False
    return True


def _quote(value: Any) -> str:
    """Return the Python expression of an argument."""
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            kind = f"{type(value).__module__}_{type(value).__name__}".replace(".", "_")
            return f"{kind}({', '.join([_quote(each) for each in value])})"
        if isinstance(value, torch.Size):
            return f"torch.Size([{', '.join([_quote(each) for each in value])}])"
        return f"({', '.join([_quote(each) for each in value])}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join([_quote(each) for each in value])}]"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{key!r}: {_quote(each)}" for key, each in value.items()]) + "}"
    if isinstance(value, slice):
        return f"slice({_quote(value.start)}, {_quote(value.stop)}, {_quote(value.step)})"
    return repr(value)


def _format_args(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> str:
    return ", ".join([*(_quote(a) for a in args), *(f"{name} = {_quote(a)}" for name, a in kwargs.items())])


def _attribute(base: str, path: str) -> str:
    """Return the expression that reads a dotted path; names that are not identifiers go through getattr."""
    expression = base
    for part in path.split("."):
        expression = f"{expression}.{part}" if part.isidentifier() else f'getattr({expression}, "{part}")'
    return expression


_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "complex32": "c32", "complex64": "c64",
    "complex128": "c128", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "bool": "b8", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


def _describe_value(node: Node) -> str:
    meta = node.meta.get("val", node.meta.get("tensor_meta"))
    if meta is None or not hasattr(meta, "dtype") or not hasattr(meta, "shape"):
        return ""
    dtype = str(meta.dtype).removeprefix("torch.")
    return f': "{_SHORT.get(dtype, dtype)}[{", ".join([str(each) for each in meta.shape])}]"'


publish(globals())
