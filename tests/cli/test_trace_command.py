"""`flambeau trace`: its forms, what it refuses, and its page in a browser."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_kit import environment, program
from warm_start import run_module

from flambeau.cli.output import trace_page
from flambeau.core.callsite import caller
from flambeau.observe.tracing.range_recorder import AnnotatedRange
from flambeau.observe.tracing.trace import Arrow, TraceData, TraceLane, TraceSlice

RACE = """
import sys
import torch
side = torch.cuda.Stream()
x = torch.ones(1 << 20, device="cuda")  # </script><b>
with torch.cuda.nvtx.range("forward & back"):
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    print((x + y).sum().item())
sys.exit(int(sys.argv[1]))
"""
needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")


def flambeau_trace(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_module("flambeau", "trace", *arguments, env=environment(), cwd=folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a program with a race."""
    folder = tmp_path_factory.mktemp("trace")
    done = flambeau_trace(folder, "-o", "run.html", program(folder, RACE), 5)
    assert (done.returncode, done.stdout) == (5, "3145728.0\n")
    assert "written    run.html" in done.stderr and "1 race found" in done.stderr
    return folder / "run.html"


def data_of(page: Path) -> dict:
    found = re.search(r'<script class="data" type="application/json">(.*?)</script>', page.read_text(), re.S)
    assert found
    return json.loads(found[1])


def test_the_page_is_complete_in_itself(written: Path) -> None:
    text = written.read_text()
    assert not re.search(r"(src|href)\s*=|https?://|@import|\bimport\s", text)
    assert "{{" not in text and "program.py" in text
    assert text.count("</script>") == 2  # the program's own is not one


def test_the_page_holds_the_run(written: Path) -> None:
    data = data_of(written)
    columns = data["slices"]
    names = [data["names"][n] for n in columns["name"]]
    kernels = [i for i, kind in enumerate(columns["kind"]) if data["kinds"][kind] == "kernel"]
    assert [names[i] for i in kernels] == ["fill", "add", "sum", "mul"]
    assert data["lines"][columns["line"][kernels[3]]] == ["program.py:8", "y = x * 2"]
    assert [lane["name"] for lane in data["lanes"]] == ["MainThread", "default stream", "side stream 1"]
    assert data["lanes"][2]["created"] == "program.py:4"
    (race,) = data["races"]
    assert [names[side["slice"]] for side in race["sides"]] == ["fill", "mul"] and "wait_stream" in race[
        "fix"
    ]
    assert [(r["text"], r["depth"]) for r in data["ranges"]] == [("forward & back", 0)]
    partial = 128 * 4 + 4  # what the sum's blocks leave, and how many are done
    assert max(data["memory"]["0"]["used"]) == (12 << 20) + 4 + partial
    assert {data["kinds"][kind] for kind in data["arrows"]["kind"]} == {"wait", "sync"}


def test_other_forms(tmp_path: Path) -> None:
    script = program(tmp_path, RACE)
    for name in ("t.json", "t.json.gz", "t.svg"):
        assert (
            flambeau_trace(tmp_path, "--quiet", "-o", name, "--report", "r.json", script, 0).returncode == 0
        )
    plain, packed = (tmp_path / "t.json").read_bytes(), gzip.decompress((tmp_path / "t.json.gz").read_bytes())
    assert plain == packed and len(json.loads(plain)["traceEvents"]) > 30
    assert ElementTree.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "r.json").read_text())["exit_status"] == 0


def test_without_a_name_it_is_a_page_and_races_may_be_errors(tmp_path: Path) -> None:
    done = flambeau_trace(tmp_path, "--races", "error", program(tmp_path, RACE), 0)
    assert done.returncode == 3 and "RaceError" in done.stderr
    race = data_of(tmp_path / "trace.html")["races"][0]
    assert race["sides"][0]["slice"] >= 0 and race["sides"][1]["slice"] == -1  # the second never ran


def test_the_files_name_may_stand_last(tmp_path: Path) -> None:
    script = program(tmp_path, "import sys, torch\ntorch.ones(3, device='cuda')\nprint(sys.argv[1:])")
    last = ("-x", "1", "-o", "mine.json")
    done = flambeau_trace(tmp_path, "--quiet", script, *last)
    assert (done.stdout, done.stderr.count("is this command's own")) == ("['-x', '1']\n", 1)
    assert (tmp_path / "mine.json").exists() and not (tmp_path / "trace.html").exists()
    (tmp_path / "mine.json").unlink()
    done = flambeau_trace(tmp_path, "--quiet", "-o", "t.html", script, *last)
    assert (done.stdout, done.stderr) == (f"{list(last)}\n", "") and not (tmp_path / "mine.json").exists()
    done = flambeau_trace(tmp_path, "--quiet", script, "-o", "theirs.txt")
    assert done.stdout == "['-o', 'theirs.txt']\n" and (tmp_path / "trace.html").exists()


def test_a_program_without_a_device_has_an_empty_page(tmp_path: Path) -> None:
    done = flambeau_trace(tmp_path, "-o", "t.html", program(tmp_path, "print('hello')"))
    assert done.returncode == 0 and data_of(tmp_path / "t.html")["lanes"] == []


def test_each_rank_of_a_launch_writes_its_own(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4
        dist.destroy_process_group()
        """,
    )
    flambeau = [sys.executable, "-m", "flambeau"]
    command = [*flambeau, "launch", "--nproc-per-node", "2", "--no-python", *flambeau, "trace", "--quiet"]
    command += ["-o", "run.{rank}.json", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        events = json.loads((tmp_path / f"run.{rank}.json").read_text())["traceEvents"]
        assert [e["pid"] for e in events if e["ph"] == "X" and e["cat"] == "collective"] == [rank]


def test_what_is_refused(tmp_path: Path) -> None:
    script = program(tmp_path, RACE)
    for arguments, why in (
        (["-o", "t.png", script], "'t.png' has none of the endings .html, .svg, .json, .json.gz"),
        (["-o", "none/t.html", script], "can't write 'none/t.html': its folder does not exist"),
        (["-o", "t.html", "absent.py"], "can't open file 'absent.py': no such file"),
    ):
        done = flambeau_trace(tmp_path, *arguments)
        assert done.returncode == 2 and done.stderr == f"flambeau trace: {why}\n"


# -- in a browser -----------------------------------------------------------------------------------------

KIT = """
const results = [], near = (a, b) => Math.abs(a - b) < 1.5;
window.onerror = text => { document.title = "error: " + text; document.querySelector(".data").remove(); };
function check(name, ok) { if (!ok) results.push(name); }
function mouse(type, i, more) {  // at the middle of a slice
  const r = stage.getBoundingClientRect();
  const e = new PointerEvent(type, { clientX: r.left + across((begin[i] + end[i]) / 2, r.width), clientY: r.top + middleOf(i), pointerId: 1, bubbles: true, ...more });
  stage["on" + type] ? stage["on" + type](e) : stage.dispatchEvent(e);
}
stage.setPointerCapture = () => {};
function pixels(x, y, w, h) {
  const ratio = devicePixelRatio, d = stage.getContext("2d").getImageData(x * ratio, y * ratio, w * ratio, h * ratio).data, seen = new Set();
  for (let n = 0; n < d.length; n += 4) seen.add(d[n] << 16 | d[n + 1] << 8 | d[n + 2]);
  return seen;
}
function rgb(name) { const c = colors[name]; return parseInt(c.slice(1), 16); }
const named = (name, kind) => { for (let i = 0; i < count; i++) if (nameOf(i) === name && kindOf(i) === kind) return i; return -1; };
function finish() { document.title = results.length ? "failed: " + results.join("; ") : "passed"; document.querySelector(".data").remove(); }
"""


def in_browser(page: Path, script: str, *options: str) -> None:
    """Run checks in the page; its title says how they went."""
    looked = page.with_name("looked.html")
    looked.write_text(
        page.read_text().replace(
            "</body>", f"<script>(() => {{{KIT}{script}\nfinish(); }})();</script></body>"
        )
    )
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,1000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, *options, f"file://{looked}"], capture_output=True, text=True, timeout=300
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title and title[1] == "passed", title and title[1]


@needs_chromium
def test_the_page_draws_and_tells(written: Path) -> None:
    in_browser(
        written,
        """
        draw();
        const mul = named("mul", "kernel"), fill = named("fill", "kernel"), wide = stage.clientWidth;
        check("lanes", rows.map(r => r.label).filter(l => l).join() === "program,MainThread,calls,cuda:0,default stream,side stream 1,copy engine out,memory");
        const row = rows[rowOf[mul]];
        const seen = pixels(across(begin[mul], wide) - 4, topOf(row), 30, row.height);
        check("kernel drawn", seen.has(rgb("kernel")));
        check("race drawn red", seen.has(rgb("bad")));
        mouse("pointermove", mul);
        check("tip", tip.style.display === "block" && tip.textContent.includes("mul") && tip.textContent.includes("program.py:8") && tip.textContent.includes("y = x * 2"));
        check("tip tells the race", tip.textContent.includes("race 1: nothing orders it and fill on the default stream"));
        check("tip tells bytes and shapes", tip.textContent.includes("8.00 MiB") && tip.textContent.includes("float32[1048576]"));
        mouse("pointerdown", mul); mouse("pointerup", mul);
        check("selected", selected === mul && $("selected").textContent.includes("given by"));
        const add = named("add", "kernel");
        select(add);
        check("what it waited for", $("selected").textContent.includes("waited for") && $("selected").textContent.includes("mul, cuda:0, side stream 1"));
        $("selected").querySelector("a.go").click();
        check("a link selects the call", kindOf(selected) === "give" && nameOf(selected) === "add");
        check("figures", $("figures").textContent.includes("5commands") && $("figures").textContent.includes("1race"));
        check("races", $("races").textContent.includes("wait_stream") && $("races").textContent.includes("program.py:5"));
        [...$("races").querySelectorAll("a.go")].pop().click();
        check("show both", view[0] < begin[fill] && end[mul] < view[1]);
        check("table", $("table").textContent.includes("sum") && $("table").querySelectorAll("tr").length === 6);
        """,
    )


@needs_chromium
def test_the_page_zooms_moves_and_searches(written: Path) -> None:
    in_browser(
        written,
        """
        draw();
        const wide = stage.clientWidth, r = stage.getBoundingClientRect(), middle = LEFT + (wide - LEFT - RIGHT) / 2;
        const before = [...view], t = timeAt(middle, wide);
        stage.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, clientX: r.left + middle, clientY: r.top + 60, cancelable: true }));
        check("zoom in", near((view[1] - view[0]) / (before[1] - before[0]) * 100, 80) && near(across(t, wide), middle));
        const moved = [...view];
        stage.onpointerdown(new PointerEvent("pointerdown", { clientX: r.left + 500, clientY: r.top + 90, pointerId: 1 }));
        stage.onpointermove(new PointerEvent("pointermove", { clientX: r.left + 600, clientY: r.top + 90, pointerId: 1 }));
        stage.onpointerup(new PointerEvent("pointerup", { clientX: r.left + 600, clientY: r.top + 90, pointerId: 1 }));
        check("dragged", near((moved[0] - view[0]) / (view[1] - view[0]) * (wide - LEFT - RIGHT), 100));
        document.onkeydown({ key: "f", target: document.body, preventDefault() {} });
        check("whole run", view[0] <= whole[0] && view[1] >= whole[1]);
        for (let n = 0; n < 200; n++) zoom(0.5);
        check("not endlessly", view[1] - view[0] >= 19);
        draw();
        for (let n = 0; n < 200; n++) zoom(2);
        check("nor out", view[0] <= whole[0] && view[1] - view[0] < 1.1 * (whole[1] - whole[0]));
        $("search").value = "y = x * 2"; $("search").oninput();
        check("hits by source", hitList.length === 3 && $("hits").textContent === "3 hits");
        $("search").onkeydown({ key: "Enter" });
        check("first hit", selected === hitList[0] && $("hits").textContent === "1 of 3 hits");
        for (let n = 0; n < 3; n++) $("search").onkeydown({ key: "Enter" });
        check("around", selected === hitList[0]);
        $("search").value = "SIDE stream"; $("search").oninput();
        check("no hits", $("hits").textContent === "0 hits");
        draw();
        $("search").onkeydown({ key: "Escape" });
        check("cleared", hits === null);
        const press = key => document.onkeydown({ key, target: stage, preventDefault() {} });
        press("Escape"); press("n");
        const one = selected, lane = rows[rowOf[one]];
        press("n");
        check("keys select along a lane", lane.type === "stream" && lane.list[0] === one && selected === lane.list[1]);
        press("p"); press("p");
        check("and stop at its end", selected === one);
        stage.focus({ focusVisible: true });
        check("the focus is seen", getComputedStyle(stage).outlineStyle === "solid");
        const light = colors.paper;
        $("theme").click();
        check("dark", colors.paper !== light && isDark());
        draw();
        for (const by of ["name", "line"]) { $("color").value = by; $("color").onchange(); draw(); }
        $("launches").checked = true; draw();
        """,
    )


@needs_chromium
def test_the_critical_path_explains_the_whole_run(written: Path) -> None:
    """From the end back: the copy that ends with the host's wait, the sum before it, its launch, and so on."""
    in_browser(
        written,
        """
        const { since, spent } = criticalPath(), on = i => since.has(i), all = [...spent.values()].reduce((a, b) => a + b);
        let last = -1, first = -1;
        for (let i = 0; i < count; i++) { if (last < 0 || end[i] > end[last]) last = i; if (first < 0 || begin[i] < begin[first]) first = i; }
        check("from the last end to the first begin", on(last) && on(first));
        check("it explains all of the time: " + all, all === end[last] - begin[first]);
        check("commands that the host waited for", on(named("sum", "kernel")) && on(named("copy to the host", "copy_out")));
        check("not what ended long before", !on(named("fill", "kernel")));
        const copy = named("copy to the host", "give");
        check("a call that waits counts from the end of what it waited for", !on(copy) || since.get(copy) >= end[named("copy to the host", "copy_out")]);
        check("told", $("bounds").textContent.includes("memory call") && $("bounds").children.length === spent.size);
        const sentence = $("sentence").textContent;
        check("one sentence: " + sentence, /^(Most|The largest part) of the run's .* is bound by .*: \\d+ % of the critical path\\.$/.test(sentence));
        check("its place without a race", data.races.length > 0 || $("left").contains($("why")));
        $("path").checked = true; draw();
        const sum = named("sum", "kernel"), row = rows[rowOf[sum]];
        check("drawn", pixels(across((begin[sum] + end[sum]) / 2, stage.clientWidth), topOf(row) + row.height - 5, 2, 4).has(rgb("ink")));
        """,
    )


@needs_chromium
def test_the_critical_path_leads_through_whoever_comes_last_to_a_collective(tmp_path: Path) -> None:
    trace = TraceData(
        {0: "a GPU", 1: "a GPU"}, True, lanes=[TraceLane(n, n + 1, "default stream") for n in (0, 1)]
    )
    trace.slices = [
        TraceSlice(0, "kernel", "short", 0, 100), TraceSlice(0, "collective", "all_reduce", 100, 1000),
        TraceSlice(1, "kernel", "long", 0, 900), TraceSlice(1, "collective", "all_reduce", 900, 1000),
    ]  # fmt: skip
    path = tmp_path / "ranks.html"
    path.write_text(trace_page.page(trace, "ranks.py"))
    in_browser(
        path,
        """
        const { since, spent } = criticalPath();
        check("through the late one", since.get(3) === 900 && since.get(2) === 0 && !since.has(0));
        check("spent", spent.get("kernel") === 900 && spent.get("collective") === 100 && spent.size === 2);
        """,
    )


@needs_chromium
def test_a_long_bar_behind_one_too_thin_to_see_is_drawn(tmp_path: Path) -> None:
    trace = TraceData({0: "a GPU"}, True, lanes=[TraceLane(0, 1, "default stream")])
    trace.slices = [TraceSlice(0, "fill", "fill", n, n + 1) for n in range(50)]
    trace.slices += [
        TraceSlice(0, "kernel", "add", 50, 100_000),
        TraceSlice(0, "fill", "fill", 100_000, 200_000),
    ]
    path = tmp_path / "thin.html"
    path.write_text(trace_page.page(trace, "thin.py"))
    in_browser(
        path,
        """
        draw();
        const row = rows[rowOf[50]];
        check("drawn", pixels(across(75_000, stage.clientWidth), topOf(row) + 8, 4, 4).has(rgb("kernel")));
        check("in the overview", (() => {
          const c = $("overview"), x = (LEFT + (c.clientWidth - LEFT - RIGHT) * 0.37) * devicePixelRatio, d = c.getContext("2d").getImageData(x, 20, 1, 1).data;
          return (d[0] << 16 | d[1] << 8 | d[2]) === rgb("kernel");
        })());
        """,
    )


def long_trace(commands: int, streams: int) -> TraceData:
    """A made-up run: as many kernels, on as many streams, with an arrow from each to the next one."""
    trace = TraceData({0: "a GPU"}, True, lanes=[TraceLane(-1, 0, "MainThread")])
    trace.lanes += [TraceLane(0, n + 1, f"side stream {n}") for n in range(streams)]
    site = caller(0)
    trace.slices = [
        TraceSlice(0, "give", "add", 10 * n, 10 * n + 8, 0, site, target=1 + n % streams)
        for n in range(commands)
    ]
    for stream in range(streams):
        mine = range(stream, commands, streams)
        trace.slices += [
            TraceSlice(1 + stream, "kernel", "add", 10 * n + 9, 10 * n + 18, 4096, site, n) for n in mine
        ]
    trace.arrows = [Arrow(n, n + 1, "wait", "waits") for n in range(0, commands - 1, 50)]
    trace.memory = [(n, 0, n % 4096, 4096) for n in range(0, 10 * commands, 10)]
    trace.ranges = [AnnotatedRange("step", 0, n, n + 900, 0) for n in range(0, 10 * commands, 1000)]
    return trace


@needs_chromium
@pytest.mark.parametrize(("commands", "streams"), [(100_000, 6), (9_000, 3_000)])
def test_long_runs_draw_no_more_than_can_be_seen(tmp_path: Path, commands: int, streams: int) -> None:
    path = tmp_path / "long.html"
    path.write_text(trace_page.page(long_trace(commands, streams), "long.py"))
    assert path.stat().st_size < 9_000_000
    in_browser(
        path,
        """
        let drawn = 0;
        for (const name of ["fill", "stroke", "fillRect", "fillText"]) {
          const real = CanvasRenderingContext2D.prototype[name];
          CanvasRenderingContext2D.prototype[name] = function (...given) { drawn++; return real.apply(this, given); };
        }
        for (const share of [1, 0.1, 0.001]) { fitAll(); zoom(share); drawn = 0; draw(); check("drawn at " + share + ": " + drawn, drawn < 40000 && drawn > 20); }
        fitAll(); search("add"); drawn = 0; draw(); check("with hits " + drawn, drawn < 40000);
        scroll = 1e9; draw(); check("scrolled", scroll < tall && visibleRows(stageHeight()).length > 3);
        const last = count - 1; search(""); select(last); reveal(last); draw();
        check("revealed", visibleRows(stageHeight()).includes(rows[rowOf[last]]) && begin[last] >= view[0] && end[last] <= view[1]);
        """,
    )


def test_what_is_left_out_of_a_page_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_page, "_MOST", 30)
    data = trace_page.picture(long_trace(40, 2), "p.py")
    assert data["left_out"] == 50 and len(data["slices"]["lane"]) == 30
    assert all(max(a, b) < 30 for a, b in zip(data["arrows"]["from"], data["arrows"]["to"], strict=True))
    monkeypatch.setattr(trace_page, "_MOST_POINTS", 10)
    curve = trace_page.picture(long_trace(4000, 2), "p.py")["memory"][0]
    assert len(curve["at"]) == 10 and max(curve["used"]) == max(n % 4096 for n in range(0, 40_000, 10))


def test_the_timeline_names_steps_as_reports_do(tmp_path):
    text = """
    import torch
    w = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.SGD([w], lr=0.1)
    w.grad = torch.ones_like(w)
    optimizer.step()
    """
    script = tmp_path / "p.py"
    script.write_text(textwrap.dedent(text))
    line = [
        sys.executable,
        "-m",
        "flambeau",
        "run",
        "--quiet",
        "--trace",
        "t.json",
        "--picture",
        "t.svg",
        "p.py",
    ]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=120, env=environment())
    for name in ("t.json", "t.svg"):
        written = (tmp_path / name).read_text()
        assert "SGD.step" in written and "_sgd" not in written, name
