"""Resolve each identifier of a Python file to the scope or the module that defines it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ATTRIBUTE_FUNCTIONS = {
    "getattr",
    "setattr",
    "hasattr",
    "delattr",
    "__setattr__",
    "__getattribute__",
    "object",
}


class Use(NamedTuple):
    """One occurrence of an identifier.

    Attributes:
        name: The identifier.
        line: Line number, from 1.
        column: Offset in the line, in bytes of UTF-8.
        kind: "name", "attribute", "keyword" (of a call) or "string" (an attribute's name in quotes).
        owner: For a name, "module:qualified.scope" of its definition, "" for a builtin. For an attribute
            of an imported module, "module:". For a keyword, the name of the called function. For an
            attribute in a class body, "module:Class". Else "".
        scope: An object for the scope that defines a name: equal for equal definitions. None for others.
    """

    name: str
    line: int
    column: int
    kind: str
    owner: str
    scope: object = None


class Scope:
    """A block of code that binds names.

    Attributes:
        kind: "module", "class", "function" or "comprehension".
        owner: "module:qualified.name"; lambdas and comprehensions share that of the function around them.
        bound: The names that this scope binds.
        imports: name -> (module, name in it); the second is "" where the name is a module.
        passed_on: name -> "global" or "nonlocal", from these statements.
    """

    def __init__(self, kind: str, owner: str, parent: Scope | None) -> None:
        self.kind, self.owner, self.parent = kind, owner, parent
        self.bound: set[str] = set()
        self.imports: dict[str, tuple[str, str]] = {}
        self.passed_on: dict[str, str] = {}

    def resolve(self, name: str) -> Scope | None:
        """Return the scope that defines `name` as seen from here; None for a builtin."""
        scope: Scope | None = self
        outward = self.passed_on.get(name)
        if outward == "global":
            while scope and scope.parent:
                scope = scope.parent
            return scope
        if outward == "nonlocal":
            scope = self.parent
        first = True
        while scope is not None:
            if name in scope.passed_on and not first:
                return scope.resolve(name)
            if name in scope.bound and (first or scope.kind != "class"):
                return scope
            first, scope = False, scope.parent
        return None


class Resolver(ast.NodeVisitor):
    """Collects the uses of identifiers in one file."""

    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.lines = [line.encode() for line in source.splitlines()]
        self.top = self.scope = Scope("module", f"{module}:", None)
        self.scopes = [self.top]
        self.names: list[tuple[str, int, int, Scope]] = []
        self.attributes: list[tuple[ast.Attribute | ast.Constant, ast.expr | None, str, Scope]] = []
        self.others: list[Use] = []
        self.visit(ast.parse(source))

    # -- definitions ------------------------------------------------------------------------------

    def bind(self, name: str, line: int, column: int) -> None:
        scope = self.scope
        if name not in scope.passed_on:
            scope.bound.add(name)
        self.names.append((name, line, column, scope))

    def after(self, name: str, line: int, column: int) -> tuple[int, int]:
        """Return the position of the first word `name` at or after a position."""
        while True:
            hit = re.compile(rb"(?<!\w)" + name.encode() + rb"(?!\w)").search(self.lines[line - 1], column)
            if hit:
                return line, hit.start()
            line, column = line + 1, 0

    def inside(self, kind: str, name: str) -> Scope:
        outer = self.scope
        owner = outer.owner
        if name:
            owner += name if owner.endswith(":") else f".{name}"
        self.scope = Scope(kind, owner, outer)
        self.scopes.append(self.scope)
        return outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name, *self.after(node.name, node.lineno, node.col_offset + 3))
        for part in (*node.decorator_list, *_outside(node.args), *([node.returns] if node.returns else ())):
            self.visit(part)
        outer = self.inside("function", node.name)
        self.enter_arguments(node.args)
        for part in node.body:
            self.visit(part)
        self.scope = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in _outside(node.args):
            self.visit(part)
        outer = self.inside("function", "")
        self.enter_arguments(node.args)
        self.visit(node.body)
        self.scope = outer

    def enter_arguments(self, args: ast.arguments) -> None:
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg:
                self.bind(arg.arg, arg.lineno, arg.col_offset)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name, *self.after(node.name, node.lineno, node.col_offset + 5))
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        outer = self.inside("class", node.name)
        for part in node.body:
            self.visit(part)
        self.scope = outer

    def visit_comprehension_expression(self, node: ast.ListComp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        outer = self.inside("comprehension", "")
        for i, generator in enumerate(node.generators):
            self.visit(generator.target)
            for part in (*([generator.iter] if i else ()), *generator.ifs):
                self.visit(part)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self.scope = outer

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_expression

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        inner = self.scope
        while self.scope.kind == "comprehension" and self.scope.parent:
            self.scope = self.scope.parent
        self.visit(node.target)
        self.scope = inner
        self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type:
            self.visit(node.type)
            if node.name:
                self.bind(node.name, *self.after(node.name, node.type.end_lineno, node.type.end_col_offset))
        for part in node.body:
            self.visit(part)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name:
            self.bind(node.name, node.end_lineno, node.end_col_offset - len(node.name.encode()))

    visit_MatchStar = visit_MatchAs

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.passed_on[name] = "global" if isinstance(node, ast.Global) else "nonlocal"
            if isinstance(node, ast.Global):
                self.top.bound.add(name)
            self.names.append((name, *self.after(name, node.lineno, node.col_offset + 6), self.scope))

    visit_Nonlocal = visit_Global

    # -- imports ----------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.scope.imports[alias.asname] = (alias.name, "")
                self.bind(alias.asname, alias.end_lineno, alias.end_col_offset - len(alias.asname.encode()))
            else:
                root = alias.name.split(".")[0]
                self.scope.imports[root] = (root, "")
                self.bind(root, alias.lineno, alias.col_offset)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                continue
            bound = alias.asname or alias.name
            self.scope.imports[bound] = (node.module or "", alias.name)
            if alias.asname:
                column = alias.end_col_offset - len(alias.asname.encode())
                self.bind(alias.asname, alias.end_lineno, column)
                owner = f"{node.module}:"
                self.others.append(Use(alias.name, alias.lineno, alias.col_offset, "attribute", owner))
            else:
                self.bind(alias.name, alias.lineno, alias.col_offset)

    # -- uses -------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.append((node.id, node.lineno, node.col_offset, self.scope))
        else:
            self.bind(node.id, node.lineno, node.col_offset)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        self.attributes.append((node, node.value, node.attr, self.scope))

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg:
                use = Use(keyword.arg, keyword.lineno, keyword.col_offset, "keyword", called)
                self.others.append(use)
        texts = [arg for arg in node.args[:3] if _is_name(arg)]
        if called in ATTRIBUTE_FUNCTIONS and len(node.args) > 1 and node.args[1] in texts:
            self.attributes.append((node.args[1], node.args[0], node.args[1].value, self.scope))
        elif called in ("attrgetter", "methodcaller") and texts:
            self.attributes.append((texts[0], None, texts[0].value, self.scope))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if getattr(node.targets[0], "id", "") in ("__slots__", "__match_args__"):
            values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
            for value in values:
                if _is_name(value):
                    self.attributes.append((value, None, value.value, self.scope))

    @cached_property
    def uses(self) -> list[Use]:
        """Return the uses of identifiers, in the order of the source."""
        found = list(self.others)
        for name, line, column, scope in self.names:
            owner = scope.resolve(name)
            kind = "attribute" if owner and owner.kind == "class" else "name"
            found.append(Use(name, line, column, kind, owner.owner if owner else "", owner))
        for node, value, name, scope in self.attributes:
            owner = self.module_of(value, scope) if value is not None else None
            if owner is None and isinstance(node, ast.Constant) and scope.kind == "class":
                owner = scope.owner.rstrip(":")
            if isinstance(node, ast.Constant):
                found.append(
                    Use(name, *self.after(name, node.lineno, node.col_offset), "string", owner or "")
                )
            else:
                column = node.end_col_offset - len(name.encode())
                found.append(Use(name, node.end_lineno, column, "attribute", owner or ""))
        return sorted(set(found), key=lambda use: (use.line, use.column))

    def module_of(self, value: ast.expr, scope: Scope) -> str | None:
        """Return "module:" if an expression is an imported module, else None."""
        if isinstance(value, ast.Name):
            where = scope.resolve(value.id)
            if where and value.id in where.imports:
                module, name = where.imports[value.id]
                return f"{module}.{name}:" if name else f"{module}:"
        elif isinstance(value, ast.Attribute):
            outer = self.module_of(value.value, scope)
            return f"{outer[:-1]}.{value.attr}:" if outer else None
        elif isinstance(value, ast.Call) and getattr(value.func, "id", "") == "import_module":
            named = value.args[0]
            return f"{named.value}:" if isinstance(named, ast.Constant) else None
        return None


def _outside(args: ast.arguments) -> Iterator[ast.expr]:
    """Yield what the scope around a function evaluates: annotations and defaults."""
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg and arg.annotation:
            yield arg.annotation
    yield from (default for default in (*args.defaults, *args.kw_defaults) if default)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
