"""Rename identifiers of the project as a map says, and refuse where that could change what the code does.

    python tools/rename.py MAP

A map is a TOML file:

    [names]                             # every identifier of this name, wherever it stands
    Cell = "ShadowCell"
    [module."flambeau.tape.autograd_node"]       # names that this module defines, with their imports elsewhere
    hooked = "add_hook"
    [scope."flambeau.tape.walk"]        # parameters and locals of a function
    "_Walk.step.given" = "gradients"
    "*.watchers" = "hooks"              # in every function of the module
    [attributes]                        # attributes, methods and keyword arguments, wherever they stand
    rest_without = "notify_unused_leaf"
    [attributes."flambeau.tape flambeau.tensor.autograd.leaves"]  # the same in these modules and packages only
    rest = "accumulate"
    [allow]                             # names that PyTorch has too but that mean ours here, with the reason
    read = "PyTorch's is a method of files"

Strings in `__slots__`, getattr, setattr and monkeypatch follow, and words in backticks in docstrings and comments.
The program writes nothing if a new name would meet an old one or if an old name is one of PyTorch's.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path

from same_ast import FOLDERS, differences, pairs_of
from scopes import Resolver, Use

ROOT = Path(__file__).parents[1]


class Map:
    """The tables of a map; see the module's docstring.

    Attributes:
        modules: The names of the project's modules.
        members: (module, old) -> new. `spread` adds the modules that import a name and so define it too.
        locals: ("module:scope", old) -> new.
        keywords: (function, old) -> new, for the arguments of calls of renamed parameters.
    """

    def __init__(self, text: str, modules: set[str]) -> None:
        self.modules, self.roots = modules, {module.partition(".")[0] for module in modules}
        self.tables = tomllib.loads(text)
        self.names: dict[str, str] = self.tables.get("names", {})
        self.members = {(m, o): n for m, t in self.tables.get("module", {}).items() for o, n in t.items()}
        self.locals: dict[tuple[str, str], str] = {}
        self.keywords: dict[tuple[str, str], str] = {}
        for module, table in self.tables.get("scope", {}).items():
            for path, new in table.items():
                scope, _, old = path.rpartition(".")
                self.locals[f"{module}:{scope}", old] = new
                function = re.sub(r"\.(__init__|__new__)$", "", scope).split(".")[-1]
                self.keywords[function, old] = new
        attributes = self.tables.get("attributes", {})
        self.everywhere = {o: n for o, n in attributes.items() if isinstance(n, str)}
        self.in_files = [(m.split(), t) for m, t in attributes.items() if isinstance(t, dict)]
        self.pairs = pairs_of([self.tables])  # without [allow]
        self.words = {old for old, _ in self.pairs}

    def spread(self, resolvers: dict[str, Resolver]) -> None:
        """Add the modules that pass a renamed name on: `from a import name` defines it in the importer too."""
        grown = True
        while grown:
            grown = False
            for module, resolver in resolvers.items():
                for bound, (source, name) in resolver.top.imports.items():
                    new = self.members.get((source, name))
                    if new and bound == name and (module, bound) not in self.members:
                        self.members[module, bound] = new
                        grown = True

    def is_module(self, owner: str) -> bool:
        """Return True if the owner of an attribute is a module, not an object that a module of ours defines."""
        roots = self.roots
        return owner.endswith(":") and (owner[:-1] in self.modules or owner.partition(".")[0] not in roots)

    def attribute(self, old: str, module: str) -> str | None:
        """Return the new name of an attribute in one module."""
        for places, table in self.in_files:
            if old in table and any(f"{module}.".startswith(f"{place}.") for place in places):
                return table[old]
        return self.everywhere.get(old)

    def new_name(self, use: Use, module: str) -> str | None:
        """Return the new name at one place; None if it stays."""
        if use.name not in self.words:
            return None
        if use.name in self.names:
            return self.names[use.name]
        attribute = self.attribute(use.name, module)
        if use.kind == "keyword":
            return self.keywords.get((use.owner, use.name)) or attribute
        if use.kind == "name":
            owner, _, scope = use.owner.partition(":")
            local = use.scope.imports.get(use.name) if use.scope else None  # an import inside of a function
            if local and local[1] == use.name and scope:
                return self.members.get((local[0], use.name))
            if scope:
                return self.locals.get((use.owner, use.name)) or self.locals.get((f"{owner}:*", use.name))
            return self.members.get((owner, use.name))
        if self.is_module(use.owner):
            return self.members.get((use.owner[:-1], use.name))
        return attribute


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the project is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] in ("src", "tests", "tools") else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def renamed(source: str, module: str, table: Map, resolver: Resolver) -> str:
    """Return one file's text with the map applied."""
    lines = [line.encode() for line in source.splitlines()]
    edits, meanings = set(), {}
    for use in resolver.uses:
        new = table.new_name(use, module)
        if new:
            edits.add((use.line, use.column, use.name, new))
        meanings.setdefault(use.name, set()).add(new)
    prose = {
        old: min(new) for old, new in meanings.items() if len(new) == 1 and None not in new
    } | table.names
    for line, column, old, new in sorted(edits, reverse=True):
        text = lines[line - 1]
        assert text[column:].startswith(old.encode()), (module, line, old)
        lines[line - 1] = text[:column] + new.encode() + text[column + len(old.encode()) :]
    text = b"\n".join(lines).decode() + "\n"
    for (owner, old), new in table.members.items():
        text = re.sub(rf"(\b{re.escape(owner)}[.:]){old}\b", rf"\g<1>{new}", text)  # paths in strings
    return _prose_renamed(text, prose)


def _prose_renamed(source: str, names: dict[str, str]) -> str:
    """Return the text with the words in backticks of docstrings and comments renamed."""
    if not names:
        return source
    word = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b(?!\.py)")
    spans = re.compile(r"`[^`\n]+`")
    starts = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
    }
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start in starts):
            for number in range(token.start[0], token.end[0] + 1):
                first = token.start[1] if number == token.start[0] else 0
                line = lines[number - 1]
                new = spans.sub(lambda m: word.sub(lambda n: names[n[0]], m[0]), line[first:])
                lines[number - 1] = line[:first] + new
    return "".join(lines)


def public_names() -> set[str]:
    """Return the names of PyTorch's modules and classes, of Python's builtins and of NumPy's arrays."""
    import numpy as np
    import torch

    found = {*dir(builtins), *dir(np.ndarray), *dir(torch.Tensor)}
    for line in (ROOT / "tests/goldens/torch_names.txt").read_text().split():
        found.update(line.split("."))
    for title, module in list(sys.modules.items()):
        if re.match(r"torch(\.(?!_)\w+)*$", title):
            for name, value in list(vars(module).items()):
                found.add(name)
                if issubclass(type(value), type) and value.__module__.startswith("torch"):
                    found.update(dir(value))
    return {name for name in found if not name.startswith("_")}


def refusals(table: Map, resolvers: dict[str, Resolver], public: set[str]) -> list[str]:
    """Return why the map must not be applied."""
    allowed = table.tables.get("allow", {})
    shared = {*table.names, *(old for _, old in table.members), *table.everywhere}
    found = [
        f"{old} is a public name of PyTorch, Python or NumPy"
        for old in sorted(shared & public - set(allowed))
    ]
    found += [f"{new} is not an identifier" for _, new in table.pairs if not new.isidentifier()]
    used: dict[str, set[str]] = {}
    for module, resolver in resolvers.items():
        uses = resolver.uses
        names = {use.name for use in uses}
        attributes = {use.name for use in uses if use.kind == "attribute" and not table.is_module(use.owner)}
        for old in names & table.words:
            used.setdefault(old, set()).add(module)
            new = table.names.get(old)
            if new in names:
                found.append(f"{new}, for {old}, is a name in {module} already")
            new = table.attribute(old, module)
            if new in attributes - set(allowed):
                found.append(f"{new}, for {old}, is an attribute in {module} already")
    found += [f"{old} occurs nowhere" for old in sorted(table.words - used.keys() - set(allowed))]
    for module, old in table.members:
        if module not in resolvers or old not in resolvers[module].top.bound:
            found.append(f"{module} does not define {old}")
    for owner, old in table.locals:
        module, _, scope = owner.partition(":")
        owners = (
            {use.owner for use in resolvers[module].uses if use.name == old} if module in resolvers else set()
        )
        if owner not in owners and not (scope == "*" and owners):
            found.append(f"{owner} has no {old}")
    return found


def apply(table: Map, sources: dict[Path, str], public: set[str]) -> tuple[dict[Path, str], list[str]]:
    """Return the new text of each file that changes, and why the map is refused (empty if it is not)."""
    sources = {p: s for p, s in sources.items() if any(word in s for word in table.words)}
    resolvers = {module_name(path): Resolver(module_name(path), source) for path, source in sources.items()}
    table.spread(resolvers)
    refused = refusals(table, resolvers, public)
    changed = {}
    for path, source in sources.items():
        module = module_name(path)
        in_strings = set(re.findall(r"""(?:get|has|set)attr\([^()\n]+, ["'](\w+)["']""", source))
        refused += [
            f"{path.relative_to(ROOT)} has {old!r} as the name of an attribute in a string"
            for old in sorted(in_strings & {old for _, names in table.in_files for old in names})
            if table.attribute(old, module) is None
        ]
        text = renamed(source, module, table, resolvers[module])
        if text != source:
            changed[path] = text
            refused += differences(source, text, table.pairs, str(path.relative_to(ROOT)))
    return changed, refused


def main(path: str) -> int:
    sources = {p: p.read_text() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")}
    table = Map(Path(path).read_text(), {module_name(file) for file in sources})
    changed, refused = apply(table, sources, public_names())
    if refused:
        print("\n".join(refused))
        return 1
    for file, text in changed.items():
        file.write_text(text)
    shared = "|".join({*table.names, *table.everywhere, *(old for _, old in table.members)})
    for file, text in changed.items():
        for number, line in enumerate(text.splitlines(), 1):
            if shared and re.search(rf"""["'](?:{shared})["']""", line):
                print(f"left as it is: {file.relative_to(ROOT)}:{number}: {line.strip()}")
    print(f"{len(changed)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
