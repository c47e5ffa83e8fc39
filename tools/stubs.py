"""Write the stubs of names that Flambeau makes while it is imported: the `torch` namespace and Tensor's methods.

    python tools/stubs.py            # writes src/flambeau/**/*.pyi
    python tools/stubs.py --check    # exits with 1 if a file is not what would be written

Everything else is plain annotated modules, which type checkers read themselves: docs/types.md says why.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from module_stubs import import_all, module_stub, public_packages

import flambeau
from flambeau.core.dtype import dtype
from flambeau.tensor.arguments import public, return_types
from flambeau.tensor.arguments.public_signatures import call_signatures, documented_signature

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flambeau"
HEADER = '''# Written by tools/stubs.py. Edit the definitions, and run it again.
"""{summary}"""

'''
# Names of dtypes and methods hide Python's types.
ALIASES = """
from builtins import bool as _bool, complex as _complex, float as _float, int as _int, str as _str
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from flambeau.core.device import device as _device
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.handle import RemovableHandle as _RemovableHandle
from flambeau.core.size import Size as _Size
from flambeau.core.typeinfo import finfo as _finfo, iinfo as _iinfo
from flambeau.runtime.generator import Generator as _Generator
from flambeau.runtime.streams.event import Event as _Event
from flambeau.tape.autograd_node import Node as _Node
from flambeau.tensor.arguments import return_types as _return_types
from flambeau.tensor.arguments.typing import layout as _layout, memory_format as _memory_format
from flambeau.tensor.storages import TypedStorage as _TypedStorage, UntypedStorage as _UntypedStorage

_Number: TypeAlias = _bool | _int | _float | _complex
_Ints: TypeAlias = Sequence[_int]
_IntOrInts: TypeAlias = _int | Sequence[_int]
_Tensors: TypeAlias = Sequence[Tensor]
_Device: TypeAlias = _str | _int | _device | None
"""
TYPES = {
    "int": "_int", "float": "_float", "bool": "_bool", "complex": "_complex", "str": "_str", "dtype": "_dtype",
    "device": "_device", "layout": "_layout", "memory_format": "_memory_format", "Size": "_Size", "finfo": "_finfo",
    "iinfo": "_iinfo", "Generator": "_Generator", "Node": "_Node", "Number": "_Number", "IntTuple": "_Ints",
    "IntOrTuple": "_IntOrInts", "FloatTuple": "Sequence[_float]", "NumberTuple": "Sequence[_Number]",
    "TensorList": "_Tensors", "Device": "_Device", "Given": "Tensor | None", "Out": "Any", "Array": "npt.NDArray[Any]",
    "TypedStorage": "_TypedStorage", "UntypedStorage": "_UntypedStorage", "return_types": "_return_types",
    "Shape": "tuple[_int, ...]", "Strides": "tuple[_int, ...]", "F": "Any", "_Any": "Any", "Event": "_Event",
    "RemovableHandle": "_RemovableHandle",
} | {name: name for name in (
    "Any", "Callable", "Iterable", "Iterator", "NoReturn", "None", "Sequence", "Tensor", "dict", "list",
    "np", "tuple", "type",
)}  # fmt: skip


def main() -> int:
    """Write the stubs, or compare them; return the exit status."""
    wrong = [path for path, text in stubs().items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv:
        for path in wrong:
            path.write_text(stubs()[path])
    for path in wrong:
        print(path.relative_to(ROOT))
    return 1 if wrong and "--check" in sys.argv else 0


@cache
def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    packages = public_packages(PACKAGE)
    for name in packages:
        import_all(name)  # as a package imports names from where another module defines them
    return {path_of(name): package_stub(name) for name in packages} | {
        PACKAGE / "tensor" / "tensor_methods.pyi": tensor_stub(),
        PACKAGE / "tensor" / "arguments" / "return_types.pyi": return_types_stub(),
    }


def path_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")


# -- functions --------------------------------------------------------------------------------------------


def function_stub(name: str, define: Any, method: bool, indent: str = "", key: str = "") -> list[str]:
    """Return the lines of a function: one for each way to call it. `key` is its name in the tables."""
    key = key or name
    written = WRITTEN.get(f"Tensor.{name}" if method else key)
    if written is None:
        shown = documented_signature(define, key, method)
        calls = [
            text for each in call_signatures(define, key, method) for text in spread(each, shown, key, method)
        ]
    else:
        calls = [f"(self, {line[1:]}".replace("(self, )", "(self)") if method else line for line in written]
    calls = list(dict.fromkeys(calls))
    decorator = [f"{indent}@overload"] if len(calls) > 1 else []
    comment = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""  # object's return bools
    return [line for call in calls for line in (*decorator, f"{indent}def {name}{call}: ...{comment}")]


def plain_stub(name: str, define: Any) -> str:
    """Return the line of a function that has one signature, its own."""
    signature = inspect.signature(define)
    return (
        f"def {name}{text_of([*signature.parameters.values()], translate(signature.return_annotation))}: ..."
    )


def spread(call: inspect.Signature, shown: inspect.Signature, name: str, method: bool) -> list[str]:
    """Return the text of a signature; twice if its ints may be given one by one."""
    result = result_of(name, call)
    parameters = [*call.parameters.values()]
    placed = [p for p in parameters[method:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    several = next((p for p in parameters if p.kind is p.VAR_POSITIONAL and p.annotation == "int"), None)
    if several is not None:
        together = several.replace(kind=several.POSITIONAL_OR_KEYWORD, annotation="IntTuple")
        return [
            text_of(parameters, result),
            text_of([together if p is several else p for p in parameters], result),
        ]
    one_by_one = method or any(p.kind is p.VAR_POSITIONAL for p in shown.parameters.values())
    if one_by_one and len(placed) == 1 and placed[0].annotation == "IntTuple":
        only = placed[0]
        each = only.replace(kind=only.VAR_POSITIONAL, annotation="int", default=only.empty)
        return [text_of(parameters, result), text_of([each if p is only else p for p in parameters], result)]
    return [text_of(parameters, result)]


def text_of(parameters: list[inspect.Parameter], result: str) -> str:
    parts, star = [], False
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            star = True
        elif each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        prefix = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.name == "self" and each.annotation in ("Tensor", each.empty):  # a method's
            parts.append("self")
            continue
        default = "" if each.default is each.empty else " = ..."
        parts.append(f"{prefix}{each.name}: {translate(each.annotation)}{default}")
    return f"({', '.join(parts)}) -> {result}"


def translate(annotation: Any) -> str:
    """Return an annotation of a definition in the words of the stubs."""
    if annotation in (inspect.Parameter.empty, "dict"):
        return "Any"
    tree = ast.parse(str(annotation), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in TYPES:
                raise ValueError(f"{annotation}: add {node.id} to TYPES")
            node.id = TYPES[node.id]
    return ast.unparse(tree)


def result_of(name: str, call: inspect.Signature) -> str:
    """Return the type of the result; functions with named results are those of `torch.return_types`."""
    stated = call.return_annotation
    if stated == "Any" and isinstance(getattr(return_types, name, None), type) and name[0] != "_" and (
        "dim" in call.parameters or name not in ("max", "median", "min", "nanmedian")
    ):  # fmt: skip
        return f"_return_types.{name}"
    if stated == "Any" and name in NOT_TENSORS:
        return NOT_TENSORS[name]
    return "Tensor" if stated == "Any" else translate(stated)


# Results of functions that do not state theirs: a tensor elsewhere.
PAIR = "tuple[Tensor, Tensor]"
NOT_TENSORS = {
    "_dimI": "_int", "_dimV": "_int", "_nnz": "_int", "adaptive_max_pool1d": PAIR, "as_subclass": "Any",
    "atleast_1d": "Any", "atleast_2d": "Any", "atleast_3d": "Any", "dense_dim": "_int", "is_coalesced": "_bool",
    "lu": "Any",
    "max_pool1d_with_indices": PAIR, "__reduce_ex__": "Any", "__torch_function__": "Any", "_make_subclass": "Any",
    "_make_wrapper_subclass": "Any", "__dlpack__": "Any", "sparse_dim": "_int", "split_copy": "Any", "std_mean": PAIR,
    "split_with_sizes_copy": "Any", "stft": "Tensor", "tolist": "Any", "unbind_copy": "Any", "unique": "Any",
    "unique_consecutive": "Any", "var_mean": PAIR, "__array_wrap__": "Any",
}  # fmt: skip
# Functions whose result, or whose parameters by position, follow from the number and types of their arguments.
_MOVE = "non_blocking: _bool = ..., copy: _bool = ..., *, memory_format: _memory_format | None = ..."
_PACKED = (
    "(data: Tensor, batch_sizes: Tensor, hx: {0}, params: _Tensors, has_biases: _bool, num_layers: _int, "
)
_PADDED = "(input: Tensor, hx: {0}, params: _Tensors, has_biases: _bool, num_layers: _int, "
_LAYERS = "dropout: _float, train: _bool, bidirectional: _bool"
WRITTEN = {
    cell: [
        f"{_PACKED.format(state)}{_LAYERS}) -> {result}",
        f"{_PADDED.format(state)}{_LAYERS}, batch_first: _bool) -> {result}",
    ]
    for cell, state, result in (
        ("gru", "Tensor", PAIR), ("lstm", "_Tensors", "tuple[Tensor, Tensor, Tensor]"), ("rnn_relu", "Tensor", PAIR),
        ("rnn_tanh", "Tensor", PAIR),
    )
} | {
    "einsum": ["(equation: _str, *operands: Any) -> Tensor"],
    "nonzero": [
        "(input: Tensor, *, as_tuple: Literal[False] = ..., out: Tensor | None = ...) -> Tensor",
        "(input: Tensor, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]",
    ],
    "view_copy": [
        "(input: Tensor, dtype: _dtype, *, out: Tensor | None = ...) -> Tensor",
        "(input: Tensor, size: _Ints, *, out: Tensor | None = ...) -> Tensor",
    ],
    "where": [
        "(condition: Tensor) -> tuple[Tensor, ...]",
        "(condition: Tensor, input: Tensor | _Number, other: Tensor | _Number, *, out: Tensor | None = ...) -> Tensor",
    ],
    "Tensor.item": ["() -> _bool | _int | _float"],
    "Tensor.nonzero": [
        "(*, as_tuple: Literal[False] = ...) -> Tensor", "(*, as_tuple: Literal[True]) -> tuple[Tensor, ...]",
    ],
    "Tensor.size": ["(dim: None = ...) -> _Size", "(dim: _int) -> _int"],
    "Tensor.squeeze": ["(dim: _IntOrInts = ...) -> Tensor", "(*dim: _int) -> Tensor"],
    "Tensor.squeeze_": ["(dim: _IntOrInts = ...) -> Tensor", "(*dim: _int) -> Tensor"],
    "Tensor.stride": ["(dim: None = ...) -> tuple[_int, ...]", "(dim: _int) -> _int"],
    "Tensor.to": [
        f"(dtype: _dtype, {_MOVE}) -> Tensor",
        f"(device: _Device = ..., dtype: _dtype | None = ..., {_MOVE}) -> Tensor",
        f"(other: Tensor, {_MOVE}) -> Tensor",
    ],
    "Tensor.type": [
        "(dtype: None = ..., non_blocking: _bool = ...) -> _str",
        "(dtype: _str | _dtype | type[Any], non_blocking: _bool = ...) -> Tensor",
    ],
    "Tensor.view": ["(dtype: _dtype) -> Tensor", "(size: _Ints) -> Tensor", "(*size: _int) -> Tensor"],
}  # fmt: skip

# -- packages ---------------------------------------------------------------------------------------------


def package_stub(name: str) -> str:
    """Return the stub of the torch namespace, or of another package."""
    text = module_stub(name, partial(describe, name))
    tensors = "" if name == "flambeau" else "\nfrom flambeau.tensor.tensor import Tensor\n"
    described = re.search(r"\b_(int|bool|str|float|dtype|layout|memory_format|Number|TypedStorage)\b", text)
    aliases = f"{tensors}{ALIASES}" if described else ""
    version = "\n__version__: str\n" if name == "flambeau" else ""
    used = [each for each in ("Any", "NoReturn") if not aliases and re.search(rf"\b{each}\b", text)]
    typing = f"\nfrom typing import {', '.join(used)}\n" if used else ""
    return (
        f"{HEADER.format(summary=f'The names of {public_name(name)}.')}{aliases}{typing}\n{text}\n{version}"
    )


def public_name(module: str) -> str:
    return f"torch{module.removeprefix('flambeau')}"


MADE = {"_Constructor": "Tensor", "_StorageType": "_TypedStorage"}  # classes by name: torch.FloatTensor
# Functions named as a package. Their stub is in another file: mypy's cache takes "flambeau.tensor" for the package.
HIDDEN = ("tensor",)
PREFIXES = {f"flambeau.{package}": f"{package}_" for package in ("fft", "linalg", "special")}


def describe(package: str, name: str, value: Any, has_text: bool) -> list[str] | None:
    """Return the lines of a name of a package; None if its stub imports the name."""
    parsed = package in PREFIXES or (package == "flambeau" and public.functions.get(name) is value)
    if package == "flambeau" and name in HIDDEN:
        return [f"from flambeau.tensor.tensor_methods import {name} as {name}"]
    if parsed and isinstance(value, FunctionType):
        return function_stub(name, value, False, key=f"{PREFIXES.get(package, '')}{name}")
    if isinstance(value, dtype):
        return [f"{name}: _dtype"]
    if has_text:
        return None
    base = MADE.get(type(value).__name__)
    if base is not None:
        return made_class(name, base)
    if isinstance(value, type):
        return made_class(name)
    if isinstance(value, FunctionType):
        return [plain_stub(name, value)]
    return [f"{name}: {type_of(value)}"]


def made_class(name: str, *bases: str) -> list[str]:
    """Return a class that a call makes, not a class statement."""
    head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
    return [head, "    def __init__(self, *args: Any, **kwargs: Any) -> None: ..."]


def type_of(value: Any) -> str:
    kind = type(value).__name__
    if kind == "tuple":
        return "tuple[Any, ...]"
    return "None" if value is None else TYPES.get(kind, "Any")


# -- Tensor -----------------------------------------------------------------------------------------------


def tensor_stub() -> str:
    own = members_in_text()
    lines = []
    for name, value in sorted(vars(flambeau.Tensor).items()):
        if name in own or name in (
            "__dict__",
            "__weakref__",
            "__slots__",
            "__module__",
            "__doc__",
            "__annotations__",
        ):
            continue
        lines += member_stub(name, value)
    hidden = [line for name in HIDDEN for line in function_stub(name, public.functions[name], False)]
    body = "\n".join([*hidden, "", "class TensorMethods:", *lines])
    summary = "The methods that are bound to Tensor, and functions named as a package."
    return f"{HEADER.format(summary=summary)}{ALIASES}from flambeau.tensor.tensor import Tensor\n\n{body}\n"


def members_in_text() -> set[str]:
    tree = ast.parse((PACKAGE / "tensor" / "tensor.py").read_text())
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Tensor")
    names = {n.name for n in body if isinstance(n, ast.FunctionDef)} | {"__getattr__"}  # in a branch
    return names | {
        n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }


def member_stub(name: str, value: Any) -> list[str]:
    indent = "    "
    if isinstance(value, property):
        stated = getattr(value.fget, "__annotations__", {}).get("return", "Any")
        result = "_bool" if name.startswith("is_") and stated == "Any" else translate(stated)
        lines = [f"{indent}@property", f"{indent}def {name}(self) -> {result}: ..."]
        if value.fset is not None:
            lines += [f"{indent}@{name}.setter", f"{indent}def {name}(self, value: Any) -> None: ..."]
        return lines
    if isinstance(value, classmethod | staticmethod):
        return [f"{indent}@{type(value).__name__}", f"{indent}{plain_stub(name, value.__func__)}"]
    if isinstance(value, FunctionType):
        return function_stub(name, value, True, indent)
    if name == "__hash__":
        return [f"{indent}def __hash__(self) -> _int: ..."]
    return [f"{indent}{name}: {type_of(value)}"]


NAMED_RESULT = """from collections.abc import Iterable
from typing import Any

from flambeau.tensor.tensor import Tensor

class NamedResult(tuple[Any, ...]):
    n_fields: int
    n_sequence_fields: int
    n_unnamed_fields: int
    fields: tuple[str, ...]
    stored: type[NamedResult]
    def __new__(cls, members: Iterable[Any]) -> NamedResult: ...
    @classmethod
    def of(cls, members: Iterable[Any], out: Any) -> NamedResult: ..."""


def return_types_stub() -> str:
    lines = [NAMED_RESULT]
    for name, value in sorted(vars(return_types).items()):
        if isinstance(value, type) and issubclass(value, return_types.NamedResult) and value.fields:
            members = [f"    @property\n    def {field}(self) -> Tensor: ..." for field in value.fields]
            match = f"    __match_args__ = {value.__match_args__}"
            lines += ["", f"class {name}(NamedResult):", match, *members]
    return HEADER.format(summary="`torch.return_types`.") + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
