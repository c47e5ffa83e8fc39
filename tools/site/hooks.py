"""Hooks of MkDocs for the site of docs/ (mkdocs.yml): they add generated pages and rewrite links to files.

The generated pages exist in the site only, so that the repository has no copies of them to keep up to date:
`reference/` from Flambeau's code, `gallery/` from runs of StreamBugs, `sources/` for files that pages link to.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "site")]

import gallery
import reference

# A link of a page in docs/ to a file of the repository outside of it.
_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(?:#[^)]*)?\)")
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LANGUAGES = {".py": "python", ".json": "json", ".md": "markdown", ".yml": "yaml", ".toml": "toml"}


def on_config(config: Any) -> Any:
    """List the gallery's pages, and the versions if `mike` builds the site, which puts their list next to it."""
    entries = [{title: f"gallery/{name}.md"} for name, title in gallery.BUGS.items()]
    config.nav = [
        {"Gallery": ["gallery/index.md", *entries]} if "Gallery" in entry else entry for entry in config.nav
    ]
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages: dict[str, str | bytes] = {**reference.pages(), **gallery.pages(ROOT)}
    for path in sorted(linked_files(Path(config.docs_dir))):
        pages[f"sources/{path}.md"] = source_page(path)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside of docs/ lead to the pages that show them."""
    if "/" in page.file.src_uri:  # generated: its links lead to pages
        return markdown
    return _OUTSIDE.sub(r"](sources/\1.md)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Replace the theme's script from another host, for search in pages opened as files, by the site's own."""
    up = "../" * page.file.src_uri.count("/")
    return output.replace(_SHIM, f"{up}assets/offline_search.js")


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """Do this for the page of errors, whose links are absolute, too."""
    return output.replace(_SHIM, "/assets/offline_search.js") if template_name == "404.html" else output


def linked_files(docs: Path) -> set[str]:
    """Return the files outside of docs/ that its pages link to."""
    return {path for page in docs.glob("*.md") for path in _OUTSIDE.findall(page.read_text("utf-8"))}


def source_page(path: str) -> str:
    """Return the page that shows a file of the repository."""
    text = (ROOT / path).read_text("utf-8")
    fence = "`" * (max([2, *map(len, re.findall(r"`+", text))]) + 1)
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
