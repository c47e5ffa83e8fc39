"""Count, room by room, the names and prose that docs/glossary.md and CONTRIBUTING.md ask to avoid.

Docstrings count that begin with a word such as "What", that belong to a function and begin without a verb, or that have
a word of the glossary's "Words to avoid". Comments count that have such a word. In the package only, names count, and
docstrings with a section about a parameter or an attribute that does not exist. Tests, benchmarks, tools and examples
are one room each.

python tools/words.py           # print the counts
python tools/words.py core      # list what is counted in one room, or in tests, bench, tools, examples
python tools/words.py --write   # lower the limits in tests/words.toml to the counts
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flambeau"
LIMITS = ROOT / "tests" / "words.toml"
DOCSTRINGS_ONLY = ("tests", "bench", "tools", "examples")
# fmt: off
IRREGULAR = {
    "told", "heard", "met", "given", "known", "shown", "left", "kept", "made", "found", "said", "gone",
    "seen", "begun", "come", "held", "sent", "built", "bound", "drawn", "written", "taken", "lent",
    "spent", "grown", "thrown", "torn", "worn", "woken", "spoken", "hidden", "chosen", "brought",
    "caught",
}
AVOIDED = {
    "told", "tell", "tells", "telling", "heard", "hear", "hears", "mend", "mends", "mended", "hole",
    "holes", "whereabouts", "handover", "handovers", "remedy", "wish", "wishes", "patience", "whoever",
    "begun", "endings", "keepers", "lender", "adoption",
}
# fmt: on
GIVEN = {"optim/lr_scheduler/plateau.py": {"patience"}, "serialization/reader.py": {"tell"}}
"""Names to avoid that are not ours to choose: a parameter of PyTorch's, and a method of Python's files."""
OPENERS = re.compile(r"(Of|The same|What|Whether|How|Who|Whose|Whom)\b")
# A function's docstring begins with a verb, not with the thing that the function returns.
VERBLESS = re.compile(
    r"(The|An?|Each|All|Every|One|Its?|This|That|As|Where|Why|See|In|On|By|For|From|With|Raises)\b|[a-z`([]"
)
SECTION = re.compile(r"^(Args|Attributes):\n((?: .*\n|\n)*)", re.M)
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.M)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text().split("## Words to avoid")[1]
PROSE = re.compile(
    rf"\b({'|'.join(word for row in re.findall(r'^. `([^|]+)` .', GLOSSARY, re.M) for word in row.split(', '))})\b"
)


def is_participle(name: str) -> bool:
    """Return True if a function's name is one past participle, which does not say what the function does."""
    word = name.strip("_")
    if name.startswith("__"):
        return False  # a name of Python's, such as __reversed__
    return word in IRREGULAR or (
        word.endswith("ed") and word.isalpha() and word not in ("seed", "feed", "embed", "need", "reseed")
    )


def public() -> set[str]:
    """Return the names that PyTorch has too: they are not ours to choose.

    The lists of names lack `torch.profiler.profile`, `TypedStorage.untyped`, `Stateful`,
    `StorageWeakRef.expired` and the contexts of `multiprocessing`.
    """
    pages = ("torch_names", "torch_modules", "cuda_names")
    lines = "".join((ROOT / f"tests/goldens/{page}.txt").read_text() for page in pages)
    return {"SpawnContext", "Stateful", "expired", "locked", "profile", "untyped"} | {
        part for line in lines.split() for part in line.split(".")
    }


def mirrors(node: ast.ClassDef) -> bool:
    """Return True if a class bears the name of what it stands for, which another class may be.

    A step of random programs (`@operation`) is named as the call that it makes, and the function of an autograd node
    as PyTorch's node.
    """
    return "operation" in map(ast.unparse, node.decorator_list) or "Function" in map(ast.unparse, node.bases)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts[0] == "driver" and len(parts) > 2:
        return f"driver.{parts[1]}"
    return parts[0] if len(parts) > 1 else "top"


def avoided_word(text: str) -> str:
    """Return the first word to avoid that is outside of code spans; "" if there is none."""
    match = PROSE.search(re.sub(r"`[^`]*`", "", text))
    return match[0] if match else ""


def unclear_docstrings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, what) of each docstring to avoid."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text, line = ast.get_docstring(node) or "", getattr(node, "lineno", 1)
        if OPENERS.match(text):
            yield "openers", line, text.splitlines()[0]
        elif isinstance(node, ast.FunctionDef) and VERBLESS.match(text):
            yield "verbless", line, text.splitlines()[0]
        if word := avoided_word(text):
            yield "prose", line, word


def with_bases(node: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> list[ast.ClassDef]:
    """Return a class and the classes of the package that have the names of its bases, theirs included."""
    found = [node]
    for one in found:  # grows
        names = [re.split(r"\[", ast.unparse(base))[0].rpartition(".")[2] for base in one.bases]
        found += [parent for name in names for parent in classes.get(name, ()) if parent not in found]
    return found


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names that a class defines, lists in `__slots__` or assigns to `self`."""
    names = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and ast.unparse(child.value) in ("self", "cls"):
            names.add(child.attr)
    for child in node.body:
        if isinstance(child, ast.Assign | ast.AnnAssign):
            names |= {text for part in ast.walk(child) if isinstance(text := getattr(part, "value", 0), str)}
            names |= {part.id for part in ast.walk(child) if isinstance(part, ast.Name)}
    return names


def has_sections(node: ast.ClassDef | ast.FunctionDef) -> bool:
    text = ast.get_docstring(node, clean=False) or ""
    return "Args:" in text or "Attributes:" in text


def wrong_sections(
    node: ast.ClassDef | ast.FunctionDef, classes: dict[str, list[ast.ClassDef]]
) -> Iterator[str]:
    """Yield the parameters and attributes that a docstring describes and that do not exist."""
    owners = with_bases(node, classes) if isinstance(node, ast.ClassDef) else [node]
    for section, text in SECTION.findall((ast.get_docstring(node) or "") + "\n"):
        if section == "Attributes":
            names = {name for owner in owners for name in attributes_of(owner)}
        else:
            names = {part.arg for owner in owners for part in ast.walk(owner) if isinstance(part, ast.arg)}
        for name in [name for entry in ENTRY.findall(text) for name in entry.split(", ")]:
            if name not in names and "kwargs" not in names:
                yield f"{node.name}: {name}"


def unclear_comments(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, what) of each comment with a word to avoid."""
    if not any(avoided_word(text) for text in re.findall("#(.*)", source)):
        return  # tokenizing is slow
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and avoided_word(token.string):
            yield "comments", token.start[0], token.string


def findings() -> Iterator[tuple[str, str, str, int, str]]:
    """Yield (room, kind, path, line, what) of each name, docstring or comment to avoid."""
    names, classes, described = public(), {}, []
    for folder in DOCSTRINGS_ONLY:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for kind, line, what in unclear_docstrings(ast.parse(path.read_text())):
                yield folder, kind, path.relative_to(ROOT).as_posix(), line, what
    for path in sorted(PACKAGE.rglob("*.py")):
        room, where, source = room_of(path), path.relative_to(ROOT).as_posix(), path.read_text()
        tree = ast.parse(source)
        for kind, line, what in (*unclear_docstrings(tree), *unclear_comments(source)):
            yield room, kind, where, line, what
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not mirrors(node):
                classes.setdefault(node.name, []).append((room, where, node))
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and has_sections(node):
                described.append((room, where, node))
            if isinstance(node, ast.FunctionDef):
                read = any(
                    "property" in ast.unparse(d) or "setter" in ast.unparse(d) for d in node.decorator_list
                )
                if is_participle(node.name) and not read and node.name not in names:
                    yield room, "participles", where, node.lineno, node.name
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.arg | ast.Name | ast.Attribute):
                if isinstance(getattr(node, "ctx", None), ast.Load):
                    continue
                name = getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "id", None)
                name = name or getattr(node, "attr", "")
                words = re.findall(r"[A-Z]?[a-z]+", name)
                given = GIVEN.get(path.relative_to(PACKAGE).as_posix(), ())
                if AVOIDED & {word.lower() for word in words} and name not in given:
                    yield room, "avoided", where, node.lineno, name
    for name, places in classes.items():
        if len(places) > 1 and name not in names:
            for room, where, node in places:
                yield room, "duplicates", where, node.lineno, name
    definitions = {name: [node for *_, node in places] for name, places in classes.items()}
    for room, where, node in described:
        for name in wrong_sections(node, definitions):
            yield room, "sections", where, node.lineno, name


def counts() -> dict[str, dict[str, int]]:
    """Return the number of findings by room and kind."""
    found: dict[str, Counter[str]] = {}
    for room, kind, *_ in findings():
        found.setdefault(room, Counter())[kind] += 1
    return {room: dict(sorted(found[room].items())) for room in sorted(found)}


def limits() -> dict[str, dict[str, int]]:
    """Return how many findings each room may have."""
    return tomllib.loads(LIMITS.read_text())


def main(*args: str) -> None:
    if args[:1] == ("--write",):
        lines = [
            "# The largest numbers of names, docstrings and comments that tools/words.py may count. Only lower them."
        ]
        for room, kinds in counts().items():
            lines += ["", f'["{room}"]', *(f"{kind} = {n}" for kind, n in kinds.items())]
        LIMITS.write_text("\n".join(lines) + "\n")
    for finding in findings() if args and args[0] != "--write" else ():
        if finding[0] in args:
            print(*finding[1:])
    for room, kinds in counts().items() if not args else ():
        print(f"{room:16}", *(f"{kind} {n}" for kind, n in kinds.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
