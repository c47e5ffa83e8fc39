"""What tests of `flambeau memory`'s page share."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")


def pieces(packed: dict[str, Any]) -> list[dict[str, Any]]:
    """The pieces of memory that a page's columns stand for."""
    begins = itertools.accumulate(packed["begin"])
    columns = zip(
        *[packed[name] for name in ("addr", "size", "stream", "length", "waits", "stack")], strict=True
    )
    return [
        {"addr": addr, "size": size, "stream": stream, "begin": begin, "freed": begin + length - waits,
         "end": begin + length, "stack": stack}
        for begin, (addr, size, stream, length, waits, stack) in zip(begins, columns, strict=True)
    ]  # fmt: skip


def stack_of(found: dict[str, Any], number: int) -> list[str]:
    return [found["frames"][line] for line in found["stacks"][number]]


def in_browser(page: Path, script: str, width: int = 1280) -> list[str]:
    """What a script at the page's end finds: the words of its `told`, which it leaves in the title."""
    script = f'<script>{script}; document.title = told.join("|"); document.querySelector(".data").remove();</script></body>'
    page.write_text(page.read_text().replace("</body>", script))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    command += ["--dump-dom", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title, done.stderr
    return unescape(title[1]).split("|")
