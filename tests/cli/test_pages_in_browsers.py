"""The timeline and memory pages in Chromium: narrow and wide, light and dark, they fit and log no error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from memory_kit import needs_chromium

from flambeau.cli.output import memory_page, page_data, trace_page
from flambeau.observe.reports import Fix, Race, RaceAccess
from flambeau.observe.tracing.trace import TraceData, TraceLane, TraceSlice

STACK = [{"filename": "train.py", "line": 3, "name": "step"}]


def timeline() -> str:
    trace = TraceData(
        {0: "a GPU"}, True, lanes=[TraceLane(-1, 0, "MainThread"), TraceLane(0, 1, "default stream")]
    )
    site, lines = (timeline.__code__, 0), ("torch.cuda.current_stream().wait_stream(loader.streams[0])",) * 2
    sides = [
        RaceAccess(kind, "add", "side stream 1", 1, 0, 4, (1,), "torch.int8", site)
        for kind in ("reads", "writes")
    ]
    fix = Fix("wait_stream", "Before train.py:7 insert", True, lines, hint="This " + "waits" * 30)
    trace.races = [(Race(*sides, "cuda:0", fix, note="note:   " + "x" * 200), 0, 1)]
    trace.slices = [TraceSlice(0, "give", "add", 0, 50), TraceSlice(1, "kernel", "add", 60, 900, cause=0)]
    return trace_page.page(trace, "train.py")


def memory() -> str:
    event = {"addr": 512, "size": 512, "stream": 0, "frames": STACK}
    trace = [event | {"action": action} for action in ("segment_alloc", "alloc")]
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": STACK}
    segment = {"address": 512, "total_size": 512, "allocated_size": 512, "stream": 0, "segment_type": "large"}
    return memory_page.page({"segments": [segment | {"blocks": [block]}], "device_traces": [trace]}, "train")


def title_of(page: Path, dark: bool = False) -> tuple[str, str]:
    """Return the title that a page ends with, and what the browser logged."""
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--enable-logging=stderr",
    ]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout.partition("<title>")[2].partition("</title>")[0], done.stderr


@needs_chromium
def test_a_page_of_much_data_shows_progress_while_it_loads(tmp_path: Path) -> None:
    """Each part of the data moves a bar; the bar is gone when the page is complete."""
    bar, data = page_data.progress_and_data({"text": "</script><!--<script>" * 200_000})
    parts = data.count('class="data"')
    assert (
        parts > 4 and f'max="{parts}"' in bar and "</script><!--" not in data.replace("</script><script>", "")
    )
    watched = data.replace(".value = ", ".value = told[told.length] = ")
    script = """document.title = told.join() + "|" + JSON.parse(Array.from(document.getElementsByClassName("data"),
        part => part.textContent).join("")).text.length;"""
    page = tmp_path / "page.html"
    page.write_text(
        f"<!DOCTYPE html><body>{bar}<script>const told = [];</script>{watched}<script>{script}</script>"
    )
    assert title_of(page)[0] == f"{','.join(str(n + 1) for n in range(parts))}|{21 * 200_000}"
    for text in (timeline(), memory()):
        assert "loading" not in text.partition("<script")[0]


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
    title, log = title_of(outer, dark)
    color = "rgb(15, 19, 26)" if dark else "rgb(245, 246, 249)"
    assert sorted(title.strip("|").split("|")) == sorted(f"{width};0;{color}" for width in (390, 800, 1600))
    assert "CONSOLE" not in log, log
