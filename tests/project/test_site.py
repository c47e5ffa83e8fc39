"""The site of docs/: its navigation is complete; built, it loads nothing from elsewhere and no link is lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"


def test_each_page_has_a_place_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    named = re.findall(r": ([\w-]+\.md)$", nav, flags=re.M)
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_each_environment_variable_is_described() -> None:
    sys.path.append(str(ROOT / "tools" / "site"))
    import reference

    found = reference.pages()
    assert found["reference/environment.md"].count("| `FLAMBEAU_") == len(reference.VARIABLES)
    assert all(
        f"## flambeau {name}\n" in found["reference/commands.md"] for name in ("run", "explore", "memory")
    )
    assert "### VirtualMachine.certificate" in found["reference/virtual.md"]


@pytest.mark.skipif(not EXHAUSTIVE, reason="builds the site, 30 s: make test-all")
def test_the_site_builds_and_is_complete_in_itself(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    command = shutil.which(mkdocs) or shutil.which("mkdocs")
    assert command, "the site needs the extra `docs`: make docs-site"
    done = subprocess.run(
        [command, "build", "-q", "--strict", "-d", tmp_path], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    anchors = {
        path: set(map(unescape, re.findall(r'\sid="?([^"\s>]+)', text))) for path, text in pages.items()
    }
    assert len(pages) > 100
    lost = []
    for path, text in pages.items():
        assert not re.search(r'<(script|img|iframe)[^>]*\ssrc="?(https?:)?//', text), path
        assert not re.search(r'<link[^>]*rel="?stylesheet[^>]*href="?(https?:)?//', text), path
        for link in map(unescape, re.findall(r'\s(?:href|src)="([^"]+)"', text)):
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:|//", target) or path.name == "404.html":
                continue
            other = (path.parent / target).resolve() if target else path
            if not other.exists() or (anchor and other in anchors and anchor not in anchors[other]):
                lost.append((path.name, link))
    assert lost == []
    assert len(list(tmp_path.glob("gallery/*.svg"))) == 10
