"""The text and the syntax tree of one file of the program.

Files are read when a race is reported, never before, and parsed once.
"""

from __future__ import annotations

import ast
import io
import linecache
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice
from types import CodeType

from flambeau.core.callsite import Site

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Position = tuple[int, int, int, int]
"""(first line, first column, last line, end column). Columns count bytes, as in code objects and syntax trees."""


class SourceFile:
    """One file of the program.

    Attributes:
        path: Its path, as in its code objects.
        lines: Its text, each line with its end.
        tree: Its syntax tree.
        imports: Its import statements.
        loops: Its `for` loops.
        calls: Name of a function or method -> the calls of it.
        names_torch: Names of `torch` that the program gave it, if it does not import that itself.
        bindings: (function or module, variable) -> the first line in it that binds the variable.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = io.StringIO(text).readlines()
        self.tree = ast.parse(text)
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.loops: list[ast.For | ast.AsyncFor] = []
        self.calls: dict[str, list[ast.Call]] = {}
        self.bindings: dict[tuple[ast.AST, str], int] = {}
        self.names_torch: list[str] = []
        self._parents: dict[ast.AST, ast.AST] = {}
        self._by_position: dict[Position, ast.AST] = {}
        for node in ast.walk(self.tree):
            self._parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
            self._index(node)
            if isinstance(node, (ast.expr, ast.stmt)):
                # A statement that consists of one expression has the expression's position; the expression
                # is later and kept.
                self._by_position[_position(node)] = node

    def _index(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.append(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self.loops.append(node)
        elif isinstance(node, ast.Call):
            self.calls.setdefault(last_name(node.func), []).append(node)
        elif name := _bound_name(node):
            line = first_line(node)
            for function in self.parents(node):
                if isinstance(function, (*FUNCTIONS, ast.Module)):
                    self.bindings[function, name] = min(line, self.bindings.get((function, name), line))

    @cached_property
    def imported(self) -> dict[str, str]:
        """Return names that the file imports -> their full names."""
        found = {}
        for node in self.imports:
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    f"{module}{alias.name if module or alias.asname else alias.name.partition('.')[0]}"
                )
        return found

    def functions(self, name: str) -> list[ast.stmt]:
        """Return the functions and methods of the file that have a name."""
        return [n for n in ast.walk(self.tree) if isinstance(n, FUNCTIONS[:2]) and n.name == name]

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the syntax nodes that contain `node`, innermost first."""
        while (found := self._parents.get(node)) is not None:
            yield found
            node = found

    def is_within(self, node: ast.AST, around: ast.AST) -> bool:
        """Return True if `node` is `around` or a part of it."""
        return node is around or any(parent is around for parent in self.parents(node))

    def node_at(self, site: Site) -> ast.AST | None:
        """Return the expression or statement of a call site's instruction; None if it is not known."""
        code, offset = site
        begin, end, column, end_column = next(islice(code.co_positions(), offset // 2, None), (None,) * 4)
        if begin is None or end is None or column is None or end_column is None:
            return None
        position = begin, column, end, end_column
        return self._by_position.get(position) or self._around(position)

    def _around(self, position: Position) -> ast.AST | None:
        """Return the innermost expression or statement that contains a position."""
        found: ast.AST | None = None
        inner: ast.AST | None = self.tree
        while inner is not None:
            found = inner if isinstance(inner, (ast.expr, ast.stmt)) else found
            parts = _parts(inner)
            inner = next((n for n in parts if _holds(n, position)), None)
        return found

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement around `node` before which a line can be inserted; None inside of a lambda."""
        for around in (node, *self.parents(node)):
            if isinstance(around, ast.Lambda):
                return None
            if isinstance(around, ast.stmt) and self._begins_line(around):
                return around
        return None

    def _begins_line(self, statement: ast.stmt) -> bool:
        """Return True if another statement may be inserted before this one on a line of its indentation (not before an
        `elif`).
        """
        line = self.lines[statement.lineno - 1].encode()
        before, after = line[: statement.col_offset], line[statement.col_offset :]
        return not before.strip() and not (isinstance(statement, ast.If) and after.startswith(b"elif"))


def source_file(code: CodeType) -> SourceFile | None:
    """Return the file of a code object; None if its text cannot be read."""
    path = code.co_filename
    lines = linecache.getlines(path)
    return _parse(path, _FileLines(lines)) if lines else None


class _FileLines:
    """Lines of `linecache`, compared by identity: a file that is read again has a new list."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FileLines) and self.lines is other.lines

    def __hash__(self) -> int:
        return id(self.lines)


@lru_cache(maxsize=64)
def _parse(path: str, text: _FileLines) -> SourceFile | None:
    try:
        return SourceFile(path, "".join(text.lines))
    except (SyntaxError, ValueError):  # not Python, or the file changed while it was read
        return None


def last_name(node: ast.AST) -> str:
    """Return `c` for `a.b.c`, `a` for the name `a`, "" for anything else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def first_line(node: ast.AST) -> int:
    """Return the first line of a statement or an expression, decorators included."""
    decorators = getattr(node, "decorator_list", ())
    return min([getattr(node, "lineno", 0), *[decorator.lineno for decorator in decorators]])


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a syntax node that have a position."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:  # a node without a position: `arguments`, `comprehension`, `withitem`
            yield from _parts(child)


def _position(node: ast.AST) -> Position:
    """Return the first and last position of a syntax node. Decorators belong to the decorated definition."""
    end, end_column = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return first_line(node), getattr(node, "col_offset", 0), end, end_column


def _holds(node: ast.AST, position: Position) -> bool:
    begin, end = position[:2], position[2:]
    own = _position(node)
    return own[:2] <= begin and end <= own[2:]


def _bound_name(node: ast.AST) -> str:
    """Return the variable that a syntax node binds; "" if it binds none."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else ""
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    return node.name if isinstance(node, _DEFINITIONS) else ""
