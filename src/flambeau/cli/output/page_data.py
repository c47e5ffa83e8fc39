"""The data of a self-contained page, in parts, so that a browser can show progress while it reads them."""

from __future__ import annotations

import json
from typing import Any

_PART = 1 << 20  # characters of one part; the page of a small run has one part and shows no progress


def progress_and_data(value: Any) -> tuple[str, str]:
    """Return the HTML of a progress bar, empty for small data, and that of the data as JSON.

    The page's script joins the texts of all elements of the class `data` and removes the element `loading`.
    """
    # as JSON writes it in a string, no text of a program can end the element
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
    scripts = [f'<script class="data" type="application/json">{part}</script>' for part in parts]
    if len(parts) == 1:
        return "", scripts[0]
    progress = f'<progress max="{len(parts)}" value="0"></progress>'
    bar = f'<p id="loading" role="status">Reading {len(text) / 1e6:.0f} MB {progress}</p>'
    move = '<script>document.querySelector("#loading progress").value = {};</script>'
    return bar, "\n".join([script + move.format(done) for done, script in enumerate(scripts, 1)])
