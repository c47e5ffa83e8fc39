"""The timeline and memory pages in Chromium: narrow and wide, light and dark, they fit and log no error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from memory_kit import needs_chromium

from flambeau.cli.output import memory_page, trace_page
from flambeau.observe.tracing.trace import TraceData, TraceLane, TraceSlice

STACK = [{"filename": "train.py", "line": 3, "name": "step"}]


def timeline() -> str:
    trace = TraceData(
        {0: "a GPU"}, True, lanes=[TraceLane(-1, 0, "MainThread"), TraceLane(0, 1, "default stream")]
    )
    trace.slices = [TraceSlice(0, "give", "add", 0, 50), TraceSlice(1, "kernel", "add", 60, 900, cause=0)]
    return trace_page.page(trace, "train.py")


def memory() -> str:
    event = {"addr": 512, "size": 512, "stream": 0, "frames": STACK}
    trace = [event | {"action": action} for action in ("segment_alloc", "alloc")]
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": STACK}
    segment = {"address": 512, "total_size": 512, "allocated_size": 512, "stream": 0, "segment_type": "large"}
    return memory_page.page({"segments": [segment | {"blocks": [block]}], "device_traces": [trace]}, "train")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", [timeline, memory], ids=["timeline", "memory"])
def test_a_page_fits_every_width(make: object, dark: bool, tmp_path: Path) -> None:
    """Frames of three widths show the page; each reports its overflow, its background and its errors."""
    report = """<script>addEventListener("error", e => parent.postMessage("error: " + e.message, "*"));
      addEventListener("load", () => parent.postMessage([innerWidth, Math.max(0, document.documentElement.scrollWidth - innerWidth),
        getComputedStyle(document.body).backgroundColor].join(";"), "*"));</script></head>"""
    (tmp_path / "page.html").write_text(make().replace("</head>", report, 1))  # type: ignore[operator]
    frames = "".join(
        f'<iframe src="page.html" width={width} height=900 frameborder=0></iframe>'
        for width in (390, 800, 1600)
    )
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"<!DOCTYPE html><script>onmessage = e => {{ document.title += e.data + '|'; }};</script><body>{frames}"
    )
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--enable-logging=stderr",
    ]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{outer}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    color = "rgb(15, 19, 26)" if dark else "rgb(245, 246, 249)"
    assert sorted(title.strip("|").split("|")) == sorted(f"{width};0;{color}" for width in (390, 800, 1600))
    assert "CONSOLE" not in done.stderr, done.stderr
