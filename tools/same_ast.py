"""Prove that a rename changed names and nothing else.

    python tools/same_ast.py OLD NEW MAP...

OLD and NEW are folders or commits. The program compares each Python file of both: the syntax trees are equal when
docstrings and comments are dropped and identifiers are mapped. Every identifier must refer to the same definition as
before, and every changed identifier must stand in a MAP. It prints each difference and exits with status 1 if any.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scopes import Resolver

FOLDERS = ("src", "tests", "bench", "streambugs", "examples", "tools")
UNORDERED = ("__slots__", "__all__", "__match_args__")  # ruff sorts what is in them


def pairs_of(maps: list[dict]) -> set[tuple[str, str]]:
    """Return each (old, new) that any table of the maps names; a scope's keys are "Class.method.name"."""
    found: set[tuple[str, str]] = set()
    for tables in maps:
        for title, table in tables.items():
            if title == "allow":
                continue
            for key, value in table.items():
                inner = value.items() if isinstance(value, dict) else [(key, value)]
                found |= {(old.split(".")[-1], new) for old, new in inner}
    return found


def differences(old: str, new: str, pairs: set[tuple[str, str]], path: str = "") -> Iterator[str]:
    """Yield how two versions of one file differ in more than names that `pairs` allows."""
    if old == new:
        return
    trees = [_without_docstrings(ast.parse(text)) for text in (old, new)]
    yield from (f"{path}:{line}: {what}" for line, what in _compare(*trees, pairs))
    before, after = (_in_order_of_definition(text) for text in (old, new))
    if len(before) != len(after):
        yield f"{path}: {len(before)} identifiers before, {len(after)} after"
        return
    forward: dict[object, object] = {}
    backward: dict[object, object] = {}
    for was, now in zip(before, after, strict=True):
        if was.name != now.name and (was.name, now.name) not in pairs:
            yield f"{path}:{now.line}: {was.name} became {now.name}, which no map says"
        if (was.scope is None) != (now.scope is None):
            yield f"{path}:{now.line}: {now.name} refers to another definition than {was.name} did"
        if was.scope is not None:
            key, image = (was.scope, was.name), (now.scope, now.name)
            if forward.setdefault(key, image) != image or backward.setdefault(image, key) != key:
                yield f"{path}:{now.line}: {now.name} refers to another definition than {was.name} did"


def _in_order_of_definition(source: str) -> list:
    """Return the uses of identifiers, with the ones of imports and slots in an order that sorting cannot change."""
    tree, uses = ast.parse(source), Resolver("m", source).uses
    lines = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) or _is_unordered(node)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [use for use in uses if use.line not in lines]


def _is_unordered(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in UNORDERED


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a string that is a statement has no effect, wherever it stands
            node.body = [
                part
                for part in body
                if not (isinstance(part, ast.Expr) and isinstance(getattr(part.value, "value", None), str))
            ]
    return tree


def _compare(
    old: object, new: object, pairs: set[tuple[str, str]], line: int = 0
) -> Iterator[tuple[int, str]]:
    if isinstance(new, ast.AST):
        line = getattr(new, "lineno", line)
    if type(old) is not type(new):
        yield line, f"{_shown(old)} became {_shown(new)}"
    elif (
        _is_unordered(old)
        and isinstance(old.value, ast.Tuple | ast.List)
        and type(old.value) is type(new.value)
    ):
        texts = [[(ast.unparse(e).strip("'"), None) for e in node.value.elts] for node in (old, new)]
        yield from _compare_sets(*texts, pairs, line)
    elif isinstance(old, ast.AST):
        for field in old._fields:
            yield from _compare(getattr(old, field, None), getattr(new, field, None), pairs, line)
    elif isinstance(old, list):
        imports, (old, new) = zip(*[_split_imports(part) for part in (old, new)], strict=True)
        yield from _compare_sets(*imports, pairs, line)
        if len(old) != len(new):
            yield line, f"{len(old)} parts became {len(new)}"
        for was, now in zip(old, new, strict=False):
            yield from _compare(was, now, pairs, line)
    elif old != new and not (isinstance(old, str) and _mapped(old, new, pairs)):
        yield line, f"{old!r} became {new!r}"


def _split_imports(nodes: list) -> tuple[list, list]:
    """Return what a block of code imports, as names in any order, and its other statements."""
    imported = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    names = [(f"{n.module}.{alias.name}", alias.asname) for n in imported for alias in n.names]
    return names, [n for n in nodes if n not in imported]


def _compare_sets(old: list, new: list, pairs: set[tuple[str, str]], line: int) -> Iterator[tuple[int, str]]:
    """Compare names of imports or slots, whose order a formatter may change."""
    left = list(new)
    for was in old:
        fit = [
            now
            for now in left
            if all(a == b or (a and b and _mapped(a, b, pairs)) for a, b in zip(was, now, strict=True))
        ]
        if fit:
            left.remove(was if was in fit else fit[0])
        else:
            yield line, f"{was[0]} is missing"
    yield from ((line, f"{now[0]} is new") for now in left)


def _mapped(old: str, new: str, pairs: set[tuple[str, str]]) -> bool:
    """Return True if two identifiers, or two dotted paths of identifiers, differ by pairs of the map only."""
    parts = [text.replace(":", ".").split(".") for text in (old, new)]
    if len(parts[0]) != len(parts[1]) or not all(part.isidentifier() for part in parts[1]):
        return False
    return all(a == b or (a, b) in pairs for a, b in zip(*parts, strict=True))


def _shown(node: object) -> str:
    return ast.unparse(node)[:60] if isinstance(node, ast.AST) else repr(node)


def files_of(where: str) -> dict[str, str]:
    """Return path -> text of the Python files in a folder or a commit."""
    if Path(where).is_dir():
        found = {path: path.read_text() for f in FOLDERS for path in Path(where, f).rglob("*.py")}
        return {path.relative_to(where).as_posix(): text for path, text in found.items()}
    packed = subprocess.run(["git", "archive", where], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {
            m.name: archive.extractfile(m).read().decode()  # type: ignore[union-attr]
            for m in archive.getmembers()
            if m.name.endswith(".py") and m.name.split("/")[0] in FOLDERS
        }


def main(old: str, new: str, *maps: str) -> int:
    pairs = pairs_of([tomllib.loads(Path(m).read_text()) for m in maps])
    before, after = files_of(old), files_of(new)
    found = [f"{path}: only on one side" for path in sorted(before.keys() ^ after.keys())]
    for path in sorted(before.keys() & after.keys()):
        found += differences(before[path], after[path], pairs, path)
    print("\n".join(found) or f"{len(after)} files are the same but for names, docstrings and comments")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
