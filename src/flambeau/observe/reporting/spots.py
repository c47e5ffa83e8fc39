"""A `SourceSpot` is the expression, with its statement and loops, that the program's running instruction belongs to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from flambeau.core.callsite import Site
from flambeau.observe.reporting.source_file import FUNCTIONS, SourceFile, first_line, last_name, source_file
from flambeau.observe.reports import Edit

FOR = (ast.For, ast.AsyncFor)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class SourceSpot(NamedTuple):
    """A position in the program's text: a syntax node and the statement around it.

    Attributes:
        source: The file.
        node: The expression or statement that is evaluated there.
        statement: The statement around `node` before which a line can be inserted.
    """

    source: SourceFile
    node: ast.AST
    statement: ast.stmt

    @property
    def line(self) -> int:
        """Return the line at which the statement begins, its decorators included."""
        return first_line(self.statement)

    @property
    def function(self) -> ast.AST:
        """Return the innermost function around the syntax node, or the module."""
        return next((n for n in self.parents() if isinstance(n, FUNCTIONS)), self.source.tree)

    @property
    def class_of(self) -> ast.AST | None:
        """Return the innermost class definition around the syntax node."""
        return next((n for n in self.parents() if isinstance(n, ast.ClassDef)), None)

    def parents(self) -> Iterator[ast.AST]:
        """Yield the syntax nodes that contain this one, innermost first."""
        return self.source.parents(self.node)

    def within_function(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield the syntax nodes from this one out to its function, each with the child that contains this one."""
        inner = self.node
        for around in self.parents():
            if isinstance(around, FUNCTIONS):
                return
            yield inner, around
            inner = around

    def selections(self) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Yield the streams that `with` statements of the function select at this position, innermost first.

        That is the argument of `torch.cuda.stream(...)`, of `torch.cuda.graph(..., stream=...)`, or the
        item itself.
        """
        for around, item in self._with_items():
            if (stream := _selected_stream(item)) is not None:
                yield around, stream

    @property
    def selects_device(self) -> bool:
        """Return True if a `with` statement of the function selects a stream or a device around the node."""
        return any(_selected_stream(item) or _selects_device(item) for _, item in self._with_items())

    def _with_items(self) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Yield the context managers of `with` statements around this node in its function, innermost first."""
        for inner, around in self.within_function():
            if isinstance(around, (ast.With, ast.AsyncWith)) and inner in around.body:
                for item in reversed(around.items):
                    yield around, item.context_expr

    def loop_with(self, other: SourceSpot) -> ast.stmt | None:
        """Return the innermost loop of the function whose body contains this node and another one."""
        around_other = {other.node, *other.parents()}
        for inner, around in self.within_function():
            repeats = isinstance(around, FOR) and inner is not around.iter
            if around in around_other and (repeats or isinstance(around, ast.While)):
                assert isinstance(around, ast.stmt)
                return around
        return None

    @property
    def is_repeated_header(self) -> bool:
        """Return True in the condition of a `while` or the iterable of a `for`, where no line can precede each
        evaluation.
        """
        for inner, around in self.within_function():
            if isinstance(around, ast.While) and inner is around.test:
                return True
            if isinstance(around, FOR) and inner is around.iter:
                return True
            if isinstance(around, ast.stmt):
                return False
        return False

    def around(self, node: ast.expr, before: str, after: str) -> tuple[Edit, Edit]:
        """Return the edits that insert text before and after an expression."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = self._at(node.lineno, node.col_offset, before)
        return begin, self._at(node.end_lineno, node.end_col_offset, after)

    def _at(self, line: int, offset: int, text: str) -> Edit:
        # columns of syntax trees count bytes
        column = len(self.source.lines[line - 1].encode()[:offset].decode())
        return Edit(self.source.path, line, column, text)

    def before(self, *lines: str) -> Edit:
        """Return the edit that inserts lines before the statement."""
        return insertion(self.source, self.line, self.statement, lines)

    def is_bound(self, name: str, code: CodeType) -> bool:
        """Return True if a variable certainly has a value before the statement, as far as the text shows.

        Args:
            code: The code of the function.
        """
        if name in (*_parameters(code), *code.co_freevars):
            return True
        line = self.source.bindings.get((self.function, name))
        return name not in code.co_varnames if line is None else line < self.line


def spot_of(site: Site | None) -> SourceSpot | None:
    """Return the position in the text of a call site; None if the text is not readable or no line can precede it."""
    source = source_file(site[0]) if site is not None else None
    node = source.node_at(site) if source is not None and site is not None else None
    statement = source.statement_of(node) if source is not None and node is not None else None
    return SourceSpot(source, node, statement) if source and node and statement else None


def insertion(source: SourceFile, line: int, like: ast.stmt, lines: tuple[str, ...]) -> Edit:
    """Return the edit that inserts lines before a line, with the indentation of a statement."""
    text = source.lines[like.lineno - 1]
    indent = text[: len(text) - len(text.lstrip())]
    return Edit(source.path, line, 0, "".join([f"{indent}{added}\n" for added in lines]))


def is_comprehension(code: CodeType) -> bool:
    """Return True if the code is that of a comprehension, which belongs to a statement of the enclosing
    function.
    """
    return code.co_name in _COMPREHENSIONS


def is_simple(node: ast.AST) -> bool:
    """Return True for names, their attributes, and items at a constant or a name: expressions without a call."""
    if isinstance(node, ast.Attribute):
        return is_simple(node.value)
    if isinstance(node, ast.Subscript):
        return is_simple(node.value) and isinstance(node.slice, (ast.Constant, ast.Name))
    return isinstance(node, ast.Name)


def _selected_stream(item: ast.expr) -> ast.expr | None:
    if not isinstance(item, ast.Call):
        return item if is_simple(item) else None
    name = last_name(item.func)
    if name == "stream" and len(item.args) == 1:
        return item.args[0]
    if name == "graph":
        return next((keyword.value for keyword in item.keywords if keyword.arg == "stream"), None)
    return None


def _selects_device(item: ast.expr) -> bool:
    return isinstance(item, ast.Call) and last_name(item.func) in ("device", "device_of", "_DeviceGuard")


def _parameters(code: CodeType) -> tuple[str, ...]:
    stars = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
