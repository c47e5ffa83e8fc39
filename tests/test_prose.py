"""Rules of the pages: line length, words, terms of the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (".", ".github", "changes", "docs", "streambugs", "examples/ci_without_gpu", "tests")
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
COLUMNS = 100
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
AVOIDED = re.findall(r"^\| `([^|]+)` \|", GLOSSARY.split("## Words to avoid")[1], flags=re.M)
NOTES = {
    title
    for path in (ROOT / "src").rglob("*.py")
    for title in re.findall(r"^\s*# Note \[(.+?)\]", path.read_text(), flags=re.M)
}
# A row of this page repeats the first line of a function's docstring.
GENERATED_ROWS = "operators.md"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are outside fenced code and comments, without code spans."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("<!--", "    ")):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_short(page: Path) -> None:
    long = [number for number, line in prose(page) if len(line) > COLUMNS and not line.startswith("|")]
    assert long == [], f"{page.name}: lines {long} have more than {COLUMNS} columns"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_standard_words(page: Path) -> None:
    words = re.compile(rf"\b({'|'.join(word for row in AVOIDED for word in row.split(', '))})\b", re.I)
    found = [
        f"{page.name}:{number}: {match[0]}"
        for number, line in prose(page)
        if not (page.name == GENERATED_ROWS and line.startswith("|"))
        for match in words.finditer(line)
    ]
    assert found == [], 'docs/glossary.md, "Words to avoid", names the standard terms'


def test_each_term_is_defined_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, flags=re.M)
    assert sorted(terms, key=str.lower) == sorted(set(terms), key=str.lower) and len(terms) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        text = ((page.parent / target) if target else page).read_text()
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if anchor not in anchors:
            lost.append(f"{target}#{anchor}")
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_notes_that_pages_name_exist(page: Path) -> None:
    named = re.findall(r"Note\s+\[(.+?)\]", " ".join(page.read_text().split()))
    assert [title for title in named if title not in NOTES and title != "Title"] == []
