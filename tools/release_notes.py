#!/usr/bin/env python3
"""Print the notes of a release; fail if the tag, the package and the changelog name different versions.

python tools/release_notes.py v0.2.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]*)\)\n(?P<notes>.*?)(?=^## |\Z)", re.M | re.S)


def find_notes(tag: str, version: str, changelog: str) -> str:
    """Return the changelog's text for a release.

    Args:
        tag: The tag of the release, `v` and the version.
        version: The version of the package.
        changelog: The text of CHANGELOG.md, newest release first.

    Raises:
        ValueError: If the three do not name one version, or the changelog has no date for it.
    """
    newest = SECTION.search(changelog)
    if newest is None:
        raise ValueError("CHANGELOG.md has no section `## VERSION (DATE)`")
    if not tag == f"v{version}" == f"v{newest['version']}":
        raise ValueError(
            f"the tag is {tag}, the package is {version} and CHANGELOG.md begins with {newest['version']}"
        )
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", newest["date"]):
        raise ValueError(
            f"CHANGELOG.md says ({newest['date']}) for {version}; it must be the date of the release"
        )
    return newest["notes"].strip() + "\n"


def main() -> int:
    """Print the notes for the tag that the only argument names."""
    (tag,) = sys.argv[1:]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        sys.stdout.write(find_notes(tag, version, (ROOT / "CHANGELOG.md").read_text()))
    except ValueError as error:
        print(f"release_notes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
