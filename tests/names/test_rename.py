"""tools/rename.py renames what a map says and refuses the rest; tools/same_ast.py notices every other change."""

from __future__ import annotations

import re
import symtable
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import rename  # noqa: E402
import same_ast  # noqa: E402
import scopes  # noqa: E402

FILES = sorted((ROOT / "src").rglob("*.py"))
NODE = '''
class Node:
    """Has `told`."""
    __slots__ = ("told", "other")

    def __init__(self, told, given):
        self.told = told
        self.other = [given for given in given if given]

def told(given=1):
    """Return `given`."""
    def inner():
        nonlocal given
        given += 1
        return f"{given} {given!r:>{given}}"
    return inner, told

one = Node(1, 2)

def apart(given):
    return given, "given"
'''
USER = """
from a import node
from a.node import Node, told

def run(monkeypatch, told_of):
    monkeypatch.setattr(node, "told", None)
    monkeypatch.setattr("a.node.told", None)
    return told(given=2), node.told, Node(1, 2).told, getattr(told_of, "told")

from a.node import one
import numpy
assert one.told and numpy.told
"""


def applied(table: str, public: set[str] = frozenset(), **files: str) -> tuple[dict[str, str], list[str]]:
    sources = {ROOT / "src" / "a" / f"{name}.py": text for name, text in files.items()}
    changed, refused = rename.apply(
        rename.Map(table, {rename.module_name(path) for path in sources}), sources, set(public)
    )
    return {path.stem: text for path, text in changed.items()}, refused


def test_a_members_new_name_follows_its_imports() -> None:
    changed, refused = applied('[module."a.node"]\ntold = "report"', node=NODE, user=USER)
    assert refused == []
    assert "def report(given=1)" in changed["node"]
    assert "return inner, report" in changed["node"]
    assert "self.told = told" in changed["node"]
    assert "import Node, report" in changed["user"]
    assert 'setattr(node, "report", None)' in changed["user"]
    assert 'setattr("a.node.report", None)' in changed["user"]
    assert 'report(given=2), node.report, Node(1, 2).told, getattr(told_of, "told")' in changed["user"]


def test_an_attributes_new_name_reaches_slots_and_getattr() -> None:
    changed, refused = applied('[attributes]\ntold = "heard_by"', node=NODE, user=USER)
    assert refused == []
    assert '("heard_by", "other")' in changed["node"]
    assert "self.heard_by = told" in changed["node"]
    assert "def told" in changed["node"]
    assert 'Node(1, 2).heard_by, getattr(told_of, "heard_by")' in changed["user"]
    assert "told(given=2), node.told" in changed["user"]
    assert "one.heard_by and numpy.told" in changed["user"]


def test_a_parameters_new_name_reaches_closures_and_keywords() -> None:
    changed, refused = applied('[scope."a.node"]\n"told.given" = "count"', node=NODE, user=USER)
    assert refused == []
    assert "nonlocal count\n        count += 1" in changed["node"]
    assert 'f"{count} {count!r:>{count}}"' in changed["node"]
    assert '"""Return `given`."""' in changed["node"]  # the word means other things in this file, too
    assert "def apart(given)" in changed["node"]
    assert "told(count=2)" in changed["user"]


def test_comprehensions_belong_to_their_function() -> None:
    changed, refused = applied('[scope."a.node"]\n"Node.__init__.given" = "values"', node=NODE)
    assert refused == []
    assert "[values for values in values if values]" in changed["node"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('[module."a.node"]\ntold = "apart"', "refers to another definition"),
        ('[scope."a.node"]\n"told.given" = "inner"', "refers to another definition"),
        ('[names]\ntold = "given"', "given, for told, is a name in a.node already"),
        ('[attributes]\ntold = "other"', "other, for told, is an attribute in a.node already"),
        ('[names]\napart = "public_apart"', "apart is a public name"),
        ('[module."a.node"]\nabsent = "present"', "absent occurs nowhere"),
        ('[module."a.node"]\ninner = "present"', "a.node does not define inner"),
        ('[scope."a.node"]\n"apart.inner" = "x"', "a.node:apart has no inner"),
        ('[module."a.node"]\ntold = "a b"', "a b is not an identifier"),
    ],
)
def test_a_map_that_could_change_meaning_is_refused(table: str, reason: str) -> None:
    try:
        refused = applied(table, {"apart"}, node=NODE)[1]
    except SyntaxError:
        assert "identifier" in reason
        return
    assert any(reason in line for line in refused), refused


def test_a_string_with_an_attribute_of_another_module_is_refused() -> None:
    user = "def f(x):\n    return getattr(x, 'told', None)\n"
    refused = applied('[attributes."a.node"]\ntold = "report"', node=NODE, user=user)[1]
    assert any("user.py has 'told' as the name of an attribute in a string" in line for line in refused), (
        refused
    )


def test_pytorchs_names_are_public() -> None:
    assert {"backward", "wait_stream", "max_pool2d", "reshape", "print"} <= rename.public_names()


@pytest.mark.parametrize(
    ("old", "new", "notice"),
    [
        ("x = 1", "x = 2", "1 became 2"),
        ("x = 1", "x = 1.0", "1 became 1.0"),
        ("f(a, b)", "f(b, a)", "a became b"),
        ("f(a, b)", "f(a, told)", "b became told"),
        ("told = 1", "known = 1", "'told' became 'known'"),
        ("def f(told): return told", "def f(report): return told", "another definition"),
        ("def f(told, b): return b", "def f(report, report_): return report", "report"),
        ("def f():\n told = 1\n told = 2", "def f():\n told = 1\n report = 2", "another definition"),
        ("from a import b, c", "from a import b", "a.c is missing"),
        ("x = 'told'", "x = 'told '", "became"),
        ("f(told=1)", "f(told=1, report=2)", "1 parts became 2"),
        ("a if b else c", "a if not b else c", "became"),
        ("x = (1, 'doc')", "x = (1, '')", "became"),
    ],
)
def test_a_change_that_is_no_rename_is_noticed(old: str, new: str, notice: str) -> None:
    found = list(same_ast.differences(old, new, {("told", "report")}))
    assert any(notice in line for line in found), found


def test_names_docstrings_comments_and_sorting_may_differ() -> None:
    old = '"""Old."""\nfrom a import told, z\nclass C:\n "What."\n __slots__ = ("told", "z")\ndef f(g):\n return g(told)  # old\n'
    new = '"""New."""\nfrom a import z, report\nclass C:\n __slots__ = ("z", "report")\ndef f(g):\n "Text."\n return g(report)\n'
    assert list(same_ast.differences(old, new, {("told", "report")})) == []
    assert list(same_ast.differences(old, new, set())) != []


def test_folders_are_compared_file_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, text in (("old", "told = 1\n"), ("new", "report = 1\n")):
        (tmp_path / side / "src").mkdir(parents=True)
        (tmp_path / side / "src" / "a.py").write_text(text)
    (tmp_path / "map.toml").write_text('[module."a"]\ntold = "report"\n')
    sides = [str(tmp_path / "old"), str(tmp_path / "new")]
    assert same_ast.main(*sides, str(tmp_path / "map.toml")) == 0
    assert same_ast.main(*sides) == 1
    (tmp_path / "new" / "src" / "b.py").write_text("")
    assert same_ast.main(*sides, str(tmp_path / "map.toml")) == 1
    assert "src/b.py: only on one side" in capsys.readouterr().out


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def test_scopes_are_those_of_pythons_compiler() -> None:
    """Each identifier stands where it is said to stand, and each scope binds what the compiler says."""
    for path in FILES:
        source = path.read_text()
        resolver = scopes.Resolver("m", source)
        for use in resolver.uses:
            line = resolver.lines[use.line - 1]
            assert line[use.column :].startswith(use.name.encode()), (path, use)
        bound = Counter(frozenset(scope.bound) for scope in resolver.scopes if scope.kind != "module")
        expected = Counter(
            frozenset(
                _plain(s.get_name()) for s in table.get_symbols() if s.is_local() and s.get_name()[0] != "."
            )
            for table in _tables(symtable.symtable(source, str(path), "exec"))
            if table.get_type() != "module"
        )
        assert bound == expected, path


def _plain(name: str) -> str:
    """Undo the mangling of private names of classes."""
    return re.sub(r"^_[A-Za-z]\w*?(__\w*[^_])$", r"\1", name)
