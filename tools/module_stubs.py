"""Stubs of packages that show names of other modules, import them late, or wrap them: `torch.nn`, `torch.cuda`.

A package's own functions and classes are taken from its text without their bodies. All other names are imported from
the modules whose text defines them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from flambeau.backends.flagged import Flag, FlaggedModule
from flambeau.core.public_names import is_inner

# Functions of these are no public names, though modules that import them show them.
HELPERS = (
    "flambeau.core.public_names",
    "flambeau.core.errors",
    "flambeau.core.absent",
    "flambeau.tensor.arguments.arg_",
)
Describe = Callable[[str, Any, bool], list[str] | None]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def site_of(value: Any, name: str, showing: str) -> tuple[str, str] | None:
    """Return the module whose text defines a class, function or constant, and its name there.

    Args:
        value: The object, or a function around it.
        name: Its public name.
        showing: The module that shows it, which is no answer.
    """
    innermost = _innermost(value)
    sites = [(module, own) for module, own in sites_by_id().get(id(innermost), ()) if module != showing]
    if not isinstance(innermost, FunctionType | type):  # equal numbers are one object
        sites = [
            site for site in sites if site[1] == name and not isinstance(value, bool | int | float | str)
        ]
    return sites[0] if sites else None


def _innermost(value: Any) -> Any:
    return unwrap(value) if isinstance(value, FunctionType) else value


@cache
def sites_by_id() -> dict[int, list[tuple[str, str]]]:
    """Return (module, name) of everything that the texts of the modules of Flambeau define, by its id."""
    found: dict[int, list[tuple[str, str]]] = {}
    for module_name in sorted(name for name in sys.modules if name.startswith("flambeau.")):
        for name, defined in sorted(defined_in(module_name).items()):
            value = vars(sys.modules[module_name]).get(name)
            if isinstance(value, FunctionType | type) and not defined:
                continue  # made by a call
            found.setdefault(id(_innermost(value)), []).append((module_name, name))
    return found


def defined_in(module_name: str) -> dict[str, bool]:
    """Return the names in the text of a module: True for classes and functions, False for what is assigned."""
    names: dict[str, bool] = {}
    for node in tree_of(module_name).body:
        if isinstance(node, Definition):
            names[node.name] = True
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: False for target in targets if isinstance(target, ast.Name)}
    return names


def tree_of(module_name: str) -> ast.Module:
    path = getattr(sys.modules[module_name], "__file__", None)
    is_text = path is not None and path.endswith(".py")
    return ast.parse(Path(path).read_text() if is_text and path is not None else "")


class _Bodiless(ast.NodeTransformer):
    """Removes bodies, defaults' values and docstrings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        ellipsis = ast.Constant(...)
        node.body = [ast.Expr(ellipsis)]
        node.args.defaults = [ellipsis for _ in node.args.defaults]
        node.args.kw_defaults = [default and ellipsis for default in node.args.kw_defaults]
        return node

    def visit_AsyncFunctionDef(self, node: Any) -> Any:
        return self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        kept = [each for each in node.body if isinstance(each, Definition | ast.AnnAssign)]
        kept += [
            each
            for each in node.body
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
        ]
        node.body = [self.visit(each) for each in sorted(kept, key=lambda each: each.lineno)] or [
            ast.Expr(ast.Constant(...))
        ]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            node.value = ast.Constant(...)  # a field of a dataclass may have a default
        return node


def own_part(module_name: str) -> list[str]:
    """Return the public definitions of a module's text, with the imports and aliases that they need."""
    tree = tree_of(module_name)
    statements = [*tree.body]
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            statements += node.body
    shown = [
        _Bodiless().visit(node)
        for node in statements
        if (isinstance(node, Definition) and node.name[0] != "_")
        or (
            isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
        )
    ]
    needed = _names_in(shown)
    support: list[ast.stmt] = []
    for node in reversed(statements):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in needed
        ):
            support.insert(0, node)
            needed |= _names_in([node])
        elif isinstance(node, Definition) and node.name[0] == "_" and node.name in needed:
            support.insert(0, _Bodiless().visit(node))
            needed |= _names_in([node])
    imports = []
    for node in statements:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            node.names = [
                alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in needed
            ]
            imports += [node] if node.names else []
    return [ast.unparse(node) for node in (*imports, *support, *shown)]


def _names_in(nodes: list[Any]) -> set[str]:
    found = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
    quoted = [
        e.value
        for n in nodes
        for e in ast.walk(n)
        if isinstance(e, ast.Constant) and isinstance(e.value, str)
    ]
    return found | {each for text in quoted for each in text.replace("[", " ").replace("]", " ").split()}


def shown_names(module: ModuleType) -> list[str]:
    """Return the names that a package shows in addition to its own definitions."""
    body = tree_of(module.__name__).body
    own = {node.name for node in body if isinstance(node, Definition)}
    own |= {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    stated = set(getattr(module, "__all__", ()))
    names = [
        name for name in names_in(module) if name[0] != "_" and name not in own and name != "annotations"
    ]
    return [name for name in names if name in stated or is_flambeaus(getattr(module, name, None))]


def names_in(module: ModuleType) -> list[str]:
    """Return the names of a module, with those that it states and imports late."""
    return sorted({*dir(module), *getattr(module, "__all__", ())})


def is_flambeaus(value: Any) -> bool:
    """Return True for what is defined in Flambeau; modules of the standard library and types are not."""
    if isinstance(value, ModuleType):
        return value.__name__.startswith("flambeau.")
    home = value.__module__ if isinstance(value, type | FunctionType) else type(value).__module__
    return str(home).startswith(("flambeau", "torch")) or isinstance(
        value, bool | int | float | str | tuple | set | timedelta | None
    )


def import_all(package: str) -> None:
    """Import what a package imports when it is first asked for."""
    module = import_module(package)
    for name in names_in(module):
        getattr(module, name, None)


def module_stub(name: str, describe: Describe) -> str:
    """Return the text of a package's stub, without its header.

    Args:
        name: The package.
        describe: Returns the lines of a name that is not imported, or None; it receives the name, the object and
            whether a module's text defines it.
    """
    module = import_module(name)
    imports, lines = [], []
    for shown in shown_names(module):
        value = getattr(module, shown)
        if isinstance(value, ModuleType):
            package, _, last = value.__name__.rpartition(".")
            package = value.__name__ if callable(value) else package  # the function by which it is called
            imports += (
                []
                if is_inner(value.__name__) and shown != "return_types"
                else [f"from {package} import {last} as {shown}"]
            )
            continue
        site = site_of(value, shown, name)
        described = describe(shown, value, site is not None)
        if described is not None:
            lines += described
        elif site is not None and not (isinstance(value, FunctionType) and site[0].startswith(HELPERS)):
            imports.append(f"from {site[0]} import {site[1]} as {shown}")
    flags = [f"{flag}: {kind}" for flag, kind in flags_of(module)]
    return "\n".join([*own_part(name), *imports, "", *flags, *lines])


def flags_of(module: ModuleType) -> list[tuple[str, str]]:
    """Return (name, type) of the attributes that the class of a module defines."""
    attributes = vars(type(module)).items() if isinstance(module, FlaggedModule) else ()
    return [
        (name, value.kind.__name__ if type(value) is Flag else "Any")
        for name, value in attributes
        if name[0] != "_"
    ]


UNINSTALLED = ("flambeau.utils.tensorboard",)  # needs another package to be imported


def public_packages(root: Path) -> list[str]:
    """Return the packages, and modules that import late, which programs may name."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = ("flambeau", *path.relative_to(root).with_suffix("").parts)
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        private = any(part[0] == "_" for part in name.split(".")) or parts[1] in ("cli", "report", "shim")
        if private or is_inner(name):
            continue
        body = ast.parse(path.read_text()).body
        late = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body)
        late |= any(
            isinstance(node, ast.ClassDef) and "FlaggedModule" in map(ast.unparse, node.bases)
            for node in body
        )
        if name not in UNINSTALLED and (late or (package and len(body) > 1)):
            found.append(name)
    return found
