"""Count, room by room, the names and docstrings that docs/glossary.md and CONTRIBUTING.md ask to avoid.

A docstring counts that begins with a word such as "What", that of a function that begins without a verb, and one
with a word of the glossary's "Words to avoid".

python tools/words.py           # print the counts
python tools/words.py core      # list what is counted in one room
python tools/words.py --write   # lower the limits in tests/words.toml to the counts
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flambeau"
LIMITS = ROOT / "tests" / "words.toml"
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
OPENERS = re.compile(r"(Of|The same|What|Whether|How|Who|Whose|Whom)\b")
# A function's docstring begins with a verb, not with the thing that the function returns.
VERBLESS = re.compile(
    r"(The|An?|Each|All|Every|One|Its?|This|That|As|Where|Why|See|In|On|By|For|From|With|Raises)\b|[a-z`([]"
)
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
        word.endswith("ed") and word.isalpha() and word not in ("seed", "feed", "embed")
    )


def public() -> set[str]:
    """Return the names that PyTorch has too: they are not ours to choose.

    The lists of names lack `torch.profiler.profile` and `TypedStorage.untyped`.
    """
    pages = ("torch_names", "torch_modules", "cuda_names")
    lines = "".join((ROOT / f"tests/goldens/{page}.txt").read_text() for page in pages)
    return {"locked", "profile", "untyped"} | {part for line in lines.split() for part in line.split(".")}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts[0] == "driver" and len(parts) > 2:
        return f"driver.{parts[1]}"
    return parts[0] if len(parts) > 1 else "top"


def findings() -> Iterator[tuple[str, str, str, int, str]]:
    """Yield (room, kind, path, line, what) of each name or docstring to avoid."""
    names, classes = public(), {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room, where = room_of(path), path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text and OPENERS.match(text):
                    yield room, "openers", where, getattr(node, "lineno", 1), text.splitlines()[0]
                elif text and isinstance(node, ast.FunctionDef) and VERBLESS.match(text):
                    yield room, "verbless", where, node.lineno, text.splitlines()[0]
                if text and (avoided := PROSE.search(re.sub(r"`[^`]*`", "", text))):
                    yield room, "prose", where, getattr(node, "lineno", 1), avoided[0]
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append((room, where, node.lineno))
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
                if AVOIDED & {word.lower() for word in words}:
                    yield room, "avoided", where, node.lineno, name
    for name, places in classes.items():
        if len(places) > 1 and name not in names:
            for room, where, line in places:
                yield room, "duplicates", where, line, name


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
            "# How many names and docstrings each room may have that tools/words.py counts. Only lower them."
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
