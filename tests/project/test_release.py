"""Releases: one version everywhere, notes from the changelog, workflows that name what exists."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import release_notes

import flambeau

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"
CHANGELOG = """# Changelog

## 0.2.0 (2026-12-01)

### Added

- A thing.

## 0.1.0 (2026-11-01)

- Everything.
"""


def test_the_package_has_one_version() -> None:
    assert PROJECT["project"]["version"] == flambeau.version.flambeau
    newest = release_notes.SECTION.search((ROOT / "CHANGELOG.md").read_text())
    assert newest and newest["version"] == flambeau.version.flambeau


def test_notes_are_the_newest_section() -> None:
    assert release_notes.find_notes("v0.2.0", "0.2.0", CHANGELOG) == "### Added\n\n- A thing.\n"


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "message"),
    [
        ("v0.3.0", "0.2.0", CHANGELOG, "the tag is v0.3.0, the package is 0.2.0"),
        ("v0.3.0", "0.3.0", CHANGELOG, "CHANGELOG.md begins with 0.2.0"),
        ("v0.2.0", "0.2.0", CHANGELOG.replace("2026-12-01", "unreleased"), "must be the date"),
        ("v0.2.0", "0.2.0", "# Changelog\n", "no section"),
    ],
)
def test_a_release_with_two_versions_or_no_date_is_refused(
    tag: str, version: str, changelog: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        release_notes.find_notes(tag, version, changelog)


@pytest.mark.parametrize("path", [*WORKFLOWS, HOOKS], ids=lambda path: path.name)
def test_workflows_and_hooks_name_what_exists(path: Path) -> None:
    text = path.read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"\bmake ([\w-]+)", text)) - targets == set()
    named = re.findall(r"(?<![\w/.$])((?:tests|tools|examples|bench|\.githooks|\.ci)/[\w./-]+)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    extras = {extra for group in re.findall(r"'\.\[([\w,-]+)\]'", text) for extra in group.split(",")}
    assert extras - PROJECT["project"]["optional-dependencies"].keys() == set()


def test_the_oldest_supported_python_is_tested() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    tested = re.findall(r'"(3\.\d+)"', (ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert min(tested, key=lambda text: int(text.split(".")[1])) == oldest


def test_fragments_of_news_have_a_kind_of_the_changelog() -> None:
    kinds = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    assert PROJECT["tool"]["towncrier"]["start_string"] in (ROOT / "CHANGELOG.md").read_text()
    for path in (ROOT / "changes").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"(\d+|\+[\w-]+)\.({'|'.join(kinds)})(\.\d+)?\.md", path.name), path.name
