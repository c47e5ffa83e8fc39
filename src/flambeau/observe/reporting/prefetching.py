"""Places for a wait in loops and loaders that prefetch: where it does not wait for the batch that is copied next.

# Note [Prefetching] A program issues batch n + 1 on a side stream before it computes with batch n. A wait before the
computation, or after the block that issues, also waits for batch n + 1: it is right, and copy and computation no
longer overlap. A wait before batch n + 1 is issued orders batch n alone. It goes to the beginning of the loop's body,
or of the method, that issues the next batch and gives the present one away. The program's text shows both: the
statement that issues assigns the next batch to other variables than those that are given away after it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from flambeau.observe.reporting.program_names import root_of, target_of
from flambeau.observe.reporting.source_file import FUNCTIONS, SourceFile, first_line, last_name
from flambeau.observe.reporting.spots import SourceSpot

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_GIVES = (ast.Yield, ast.Return)


class Issue(NamedTuple):
    """A statement that issues the next batch, in the function that gives the present one away.

    Attributes:
        function: The function, or the module.
        statement: The call of the function that issues, or the block that selects its stream.
        fresh: The variables and attributes that hold the next batch after it, as text.
    """

    function: ast.AST
    statement: ast.stmt
    fresh: frozenset[str]


def places_before_issue(
    begin: SourceSpot, block: ast.stmt, stream: ast.expr, seconds: list[SourceSpot]
) -> list[ast.stmt]:
    """Return the statements before which a wait keeps the overlap; none if the program does not prefetch.

    See Note [Prefetching].

    Args:
        begin: The first access.
        block: The `with` statement around it that selects its stream.
        stream: The stream's expression there.
        seconds: The second access, and the calls that lead to it.
    """
    if any(_is_in_place(node) for node in ast.walk(block)):
        return []  # the buffer is an old one, which other variables may hold, too
    root = root_of(ast.unparse(stream))
    for issues in (_blocks(begin, block, stream), _calls(begin, root)):
        places = [_places(begin.source, issue, seconds, root) for issue in issues]
        if any(places) and None not in places:
            return list(dict.fromkeys(place for some in places for place in some or ()))
    return []


def _is_in_place(node: ast.AST) -> bool:
    """Return True for `x.fill_(...)`, `x += ...` and `x[...] = ...` as statements."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return last_name(node.value.func).endswith("_")
    is_element = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return is_element or isinstance(node, ast.AugAssign)


def find_emptying(begin: SourceSpot) -> tuple[str, ast.stmt] | None:
    """Return the list to which a statement appends, and the only other statement that empties it; None if there is
    none.

    Args:
        begin: A position in the appended expression.
    """
    source = begin.source
    holder = _receiver(source, begin.node)
    around = begin.class_of if holder.startswith("self.") else begin.function
    found = [n for n in ast.walk(around or source.tree) if isinstance(n, ast.stmt) and _empties(n, holder)]
    found = [n for n in found if source.statement_of(n) is n and not _is_initial(n, begin)]
    return (holder, found[0]) if holder and len(found) == 1 else None


def _empties(node: ast.stmt, holder: str) -> bool:
    """Return True for `holder.clear()` and `holder = []`."""
    if isinstance(node, ast.Assign):
        is_list = isinstance(node.value, ast.List) and not node.value.elts
        return is_list and holder in [ast.unparse(target) for target in node.targets]
    return isinstance(node, ast.Expr) and ast.unparse(node.value) == f"{holder}.clear()"


def _is_initial(node: ast.stmt, begin: SourceSpot) -> bool:
    """Return True for a statement in `__init__`, or before the position `begin` in its function."""
    function = SourceSpot(begin.source, node, node).function
    is_constructor = isinstance(function, ast.FunctionDef) and function.name == "__init__"
    return is_constructor or (function is begin.function and node.lineno < begin.line)


def _blocks(begin: SourceSpot, block: ast.stmt, stream: ast.expr) -> Iterator[Issue]:
    """Yield the first access's block, and others of its function that select the stream."""
    wanted = ast.unparse(stream)
    for each in ast.walk(begin.function):
        if each is block or (isinstance(each, ast.With) and wanted == _stream_text(begin.source, each)):
            assert isinstance(each, ast.stmt)
            yield Issue(begin.function, each, frozenset(_targets(each)))


def _stream_text(source: SourceFile, block: ast.With) -> str:
    """Return the stream that a block selects, as text; "" if it selects none."""
    inner = SourceSpot(source, block.body[0], block.body[0])
    return next((ast.unparse(stream) for around, stream in inner.selections() if around is block), "")


def _calls(begin: SourceSpot, root: str) -> Iterator[Issue]:
    """Yield the calls of the first access's function in other functions of its class or module in which the stream has
    a name.

    Args:
        root: The variable with which the stream's expression begins.
    """
    source, own = begin.source, begin.function
    if not isinstance(own, ast.FunctionDef):
        return
    parameters = {argument.arg for argument in ast.walk(own.args) if isinstance(argument, ast.arg)}
    changed = {name for name in _targets(own) if (own, root_of(name)) not in source.bindings}
    for call in source.calls.get(own.name, ()):
        statement = source.statement_of(call)
        if statement is None:
            continue
        spot = SourceSpot(source, call, statement)
        is_known = root == "self" or (root not in parameters and _is_shared(spot, root, own))
        if is_known and spot.class_of is begin.class_of and spot.function is not own:
            fresh = frozenset({target_of(spot) or _receiver(source, call), *changed} - {""})
            yield Issue(spot.function, statement, fresh)


def _is_shared(spot: SourceSpot, root: str, own: ast.AST) -> bool:
    """Return True if a variable is that of a function or module around a position, and not one of `own`."""
    around = [node for node in spot.parents() if isinstance(node, (*FUNCTIONS, ast.Module))]
    return (own, root) not in spot.source.bindings and any((f, root) in spot.source.bindings for f in around)


def _receiver(source: SourceFile, call: ast.AST) -> str:
    """Return the container that receives a call's value by a method such as `append`; "" if none does."""
    around = next(iter(source.parents(call)), None)
    if isinstance(around, ast.Call) and isinstance(around.func, ast.Attribute):
        return ast.unparse(around.func.value)
    return ""


def _exits(
    source: SourceFile, function: ast.AST, seconds: list[SourceSpot]
) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield the statements of a function that give a batch away or race with its copy, with their expressions."""
    for node in ast.walk(function):
        if isinstance(node, _GIVES) and node.value is not None and not _is_none(node.value):
            statement = source.statement_of(node)
            if statement is not None and SourceSpot(source, node, statement).function is function:
                yield statement, node.value
    for second in seconds:
        if second.function is function:
            yield second.statement, second.statement


def _places(source: SourceFile, issue: Issue, seconds: list[SourceSpot], root: str) -> list[ast.stmt] | None:
    """Return the first statement of the repeated body that issues and gives away, and the exits after that body.

    The list is empty if the function gives no batch away, and None if no place keeps the overlap.
    """
    exits = list(_exits(source, issue.function, seconds))
    loop = next(
        (n for n in _around(source, issue) if isinstance(n, _LOOPS) and _has_any(source, n, exits)), None
    )
    region = issue.function if loop is None else loop
    if (
        not exits
        or not isinstance(region, (*_LOOPS, ast.FunctionDef))
        or (loop is None and not _is_kept(source, issue))
    ):
        return []  # not repeated: it issues the first batch
    if source.bindings.get((issue.function, root), 0) >= first_line(region):
        return None  # the stream has no name yet
    if _gives_fresh(region, issue, [exit for exit in exits if source.is_within(exit[0], region)]):
        return None
    later = [s for s, _ in exits if not source.is_within(s, region) and first_line(s) > first_line(region)]
    places = [_first_statement(region), *later]
    return places if all(source.statement_of(place) is place for place in places) else None


def _is_kept(source: SourceFile, issue: Issue) -> bool:
    """Return True if a call stores the copy that it issues for the next call: in an attribute, or in a variable of
    another function.
    """
    return any((issue.function, root_of(name)) not in source.bindings for name in issue.fresh)


def _around(source: SourceFile, issue: Issue) -> Iterator[ast.AST]:
    """Yield the syntax nodes around the statement that issues, within its function, innermost first."""
    for node in source.parents(issue.statement):
        if node is issue.function:
            return
        yield node


def _has_any(source: SourceFile, loop: ast.AST, exits: list[tuple[ast.stmt, ast.AST]]) -> bool:
    return any(source.is_within(statement, loop) for statement, _ in exits)


def _gives_fresh(region: ast.AST, issue: Issue, exits: list[tuple[ast.stmt, ast.AST]]) -> bool:
    """Return True if the function may return the copy that it has just issued."""
    fresh = set(issue.fresh)
    values = {id(statement): value for statement, value in exits}
    nodes = [node for node in ast.walk(region) if isinstance(node, ast.stmt)]
    for node in sorted(nodes, key=first_line):
        if first_line(node) <= first_line(issue.statement) or node is issue.statement:
            continue
        if id(node) in values and (_mentions(values[id(node)], fresh) or node in ast.walk(issue.statement)):
            return True
        if isinstance(node, ast.Assign) and _mentions(node.value, fresh):
            fresh.update(_targets(node))
    return False


def _mentions(node: ast.AST, texts: set[str]) -> bool:
    """Return True if an expression contains one of the given variables or attributes."""
    return any(ast.unparse(n) in texts for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))


def _targets(node: ast.AST) -> set[str]:
    """Return what a statement and those in it assign or change: variables, attributes and containers, as text."""
    names = [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
    found = [n for n in names if isinstance(n.ctx, ast.Store)]
    called = [
        n.value.func for n in ast.walk(node) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
    ]
    found += [f.value for f in called if isinstance(f, ast.Attribute)]  # type: ignore[misc]
    return {ast.unparse(_whole(n)) for n in found}


def _whole(node: ast.expr) -> ast.expr:
    """Return the container of an element."""
    return _whole(node.value) if isinstance(node, ast.Subscript) else node


def _first_statement(region: ast.For | ast.AsyncFor | ast.While | ast.FunctionDef) -> ast.stmt:
    """Return the first statement of a body, after a docstring."""
    body = region.body
    has_docstring = isinstance(region, ast.FunctionDef) and ast.get_docstring(region, clean=False) is not None
    return body[1] if has_docstring and len(body) > 1 else body[0]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
