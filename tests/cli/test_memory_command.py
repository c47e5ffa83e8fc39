"""`flambeau memory`: pages and replays of snapshots, Flambeau's own and others; what it refuses."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from cli_kit import flambeau_run, program
from memory_kit import in_browser, needs_chromium, pieces, stack_of

import flambeau as torch
from flambeau.cli import memory, snapshot_file
from flambeau.cli.main import main
from flambeau.cli.output import memory_page
from flambeau.runtime.memory.allocator_statistics import format_size

MIB = 1 << 20


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small program's history: two devices, two streams, an out-of-memory error."""
    path = tmp_path_factory.mktemp("memory") / "snapshot.pickle"
    with torch.virtual(devices=2, profile="v100-16g"):
        torch.cuda.memory._record_memory_history()
        kept = [torch.ones(MIB, device="cuda") for _ in range(4)]
        del kept[1]
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(torch.ones(3 * MIB, device="cuda"))
        with pytest.raises(torch.OutOfMemoryError):
            kept.append(torch.empty(1 << 34, device="cuda"))
        other = torch.ones(5, device="cuda:1")
        torch.cuda.memory._dump_snapshot(path)
    assert other is not None
    return path


def test_stacks_are_of_the_program_that_a_command_runs(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import torch
        torch.cuda.memory._record_memory_history()
        def made():
            return torch.ones(3, device='cuda')
        x = made()
        torch.cuda.memory._dump_snapshot('snapshot.pickle')
        """,
    )
    assert flambeau_run(tmp_path, script).status == 0
    found = snapshot_file.load(tmp_path / "snapshot.pickle")
    block, _ = found["segments"][0]["blocks"]
    assert [frame["name"] for frame in block["frames"]] == ["made", "<module>"]
    assert all(len(event["frames"]) <= 2 for event in found["device_traces"][0])


def test_the_page_is_complete_in_itself(snapshot: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "report.html"
    assert main(["memory", str(snapshot), "-o", str(output)]) == 0
    text = output.read_text()
    assert not re.search(r"(src|href)\s*=|https?://|import\s|@import", text)
    assert "snapshot.pickle" in text and "{{" not in text.split("<script")[0]
    assert str(output) in capsys.readouterr().out


def test_the_picture_holds_each_life_where_it_lies(snapshot: Path) -> None:
    found = memory_page.picture(snapshot_file.load(snapshot))
    first, second = found["devices"]
    lives, spans = pieces(first["lives"]), pieces(first["spans"])
    sizes = sorted(life["size"] for life in lives)
    assert sizes == [4 * MIB] * 4 + [12 * MIB]
    ended = [life for life in lives if life["end"] < first["events"]]
    assert len(ended) == 1 and ended[0]["begin"] < ended[0]["end"]
    assert len({life["stream"] for life in lives}) == 2
    assert all(
        any(s["addr"] <= life["addr"] and life["addr"] + life["size"] <= s["addr"] + s["size"] for s in spans)
        for life in lives
    )
    (oom,) = first["ooms"]
    assert oom["size"] == 1 << 36 and "test_memory_command.py" in stack_of(found, oom["stack"])[0]
    assert first["curves"]["used"][-1] == 24 * MIB
    assert max(first["curves"]["reserved"]) >= max(first["curves"]["used"])
    assert (first["curves"]["used"][0], first["curves"]["reserved"][0]) == (0, 20 * MIB)  # a segment, first
    assert "test_memory_command.py" in stack_of(found, lives[0]["stack"])[0]
    assert [life["size"] for life in pieces(second["lives"])] == [20]


@needs_chromium
def test_keys_move_the_page_and_show_pieces(snapshot: Path, tmp_path: Path) -> None:
    """Check that keys change what wheel and mouse change, and that N and P show each piece."""
    output = tmp_path / "report.html"
    main(["memory", str(snapshot), "-o", str(output)])
    script = """
      const told = [], press = (key, more = {}) => { const e = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
        (more.target || $("timeline")).dispatchEvent(e); return e.defaultPrevented; };
      const note = () => told.push([...view, rows ? rows.join(":") : "all"].join());
      note(); press("w"); note(); press("d"); note(); press("a"); press("S"); note(); press("w", { shiftKey: true }); note();
      press("f"); note();
      const seen = [], from = () => view[0] <= device.lives.begin[current] && device.lives.begin[current] <= view[1];
      press("w"); press("w");
      for (let i = 0; i < device.lives.count; i++) { press("n"); seen.push(from() && tip.style.display === "block" && tip.textContent); }
      press("n");
      told.push(device.lives.count, new Set(seen).size, seen.every(text => text && text.includes(".py")), $("spoken").textContent);
      press("p"); told.push(current, press("Escape"), tip.style.display);
      told.push(press("w", { ctrlKey: true }), press("s", { target: $("device") }), press("x"), $("timeline").tabIndex, $("curves").tabIndex);
    """
    (
        whole,
        near,
        right,
        far,
        rows,
        again,
        count,
        pieces_seen,
        named,
        spoken,
        last,
        handled,
        hidden,
        *others,
    ) = in_browser(output, script)
    views = [tuple(float(n) for n in text.split(",")[:2]) for text in (whole, near, right, far, rows, again)]
    length = views[0][1]
    assert views[0][0] == 0 and views[1] == pytest.approx((0.15 * length, 0.85 * length))
    assert views[2] == pytest.approx((0.29 * length, 0.99 * length)) and views[3] == pytest.approx(
        (0.01 * length, 0.99 * length)
    )
    assert views[4] == views[3] and not rows.endswith("all") and far.endswith("all") and again == whole
    assert (
        count == pieces_seen
        and int(count) > 3
        and named == "true"
        and f"Piece {count} of {count}: " in spoken
    )
    assert int(last) == int(count) - 2 and (handled, hidden) == ("true", "none")
    assert others == ["false", "false", "false", "0", "0"]


@needs_chromium
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_draws_in_a_browser(width: int, snapshot: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    main(["memory", str(snapshot), "-o", str(output)])
    script = """
      const r = $("timeline").getBoundingClientRect();
      for (let y = r.top; y < r.bottom; y += 2)
        if (!tip.textContent.includes(".py")) $("timeline").onmousemove(new MouseEvent("mousemove", {clientX: r.left + 0.7 * r.width, clientY: y}));
      const shot = $("timeline").getContext("2d").getImageData(200, 200, 400, 100).data;
      const piece = tip.textContent, c = $("curves").getBoundingClientRect();
      $("curves").onmousemove(new MouseEvent("mousemove", {clientX: c.left + 0.8 * c.width, clientY: c.top}));
      const curves = tip.textContent, right = tip.getBoundingClientRect().right;
      $("timeline").onmousemove(new MouseEvent("mousemove", {clientX: r.left + across(device.ooms[0].at, r.width), clientY: r.top}));
      const narrow = document.documentElement.scrollWidth <= innerWidth && right <= innerWidth;
      const told = [new Set(shot).size > 4, piece, $("segments").children.length, curves, tip.textContent, narrow, $("holders").textContent];
    """
    drawn, tip, segments, curves, oom, narrow, holders = in_browser(output, script, width)
    assert (drawn, segments, narrow) == ("true", "2", "true")
    assert re.fullmatch(r"[\d.]+ MiB in use of [\d.]+ MiB reservedevent \d+, \d+% unused", curves)
    assert (
        oom.startswith("Out of memory64.0 GiB were asked for at event ") and "test_memory_command.py" in oom
    )
    assert re.search(r"test_memory_command.py:\d+ in <listcomp>12.0 MiB in 3 pieces", holders)
    assert "MiB" in tip and "test_memory_command.py" in tip and "stream" in tip


def test_a_trace_is_replayed_with_other_settings(snapshot: Path, capsys: Any) -> None:
    assert main(["memory", "replay", str(snapshot), "--capacity", "1GiB"]) == 1
    text = capsys.readouterr().out
    assert "out of memory" in text and "asked for 64.00 GiB" in text and "test_memory_command.py:" in text
    conf = ["--conf", "max_split_size_mb:64", "--conf", "roundup_power2_divisions:2"]
    assert main(["memory", "replay", str(snapshot), "--capacity", "unlimited", *conf]) == 0
    text = capsys.readouterr().out
    assert text.count("fits: at most") == 2 and "max_split_size_mb:64\n" in text


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_replay_has_the_memory_of_the_recorded_program(
    tmp_path: Path, capsys: Any, fraction: float
) -> None:
    """What a program finds usable is what is free before its first allocation, or its share of the device."""
    path, by_pytorch = tmp_path / "s.pickle", tmp_path / "pytorch.pickle"
    with torch.virtual(devices=1):
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(fraction)
        torch.cuda.memory._record_memory_history()
        kept = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
        del kept[0]
        torch.cuda.empty_cache()
        later = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._dump_snapshot(str(path))
        del kept, later
    usable = free if fraction == 1.0 else int(total * fraction)
    found = snapshot_file.load(path)
    assert found["device_memory"] == [{"total": total, "usable": usable}]
    assert main(["memory", "replay", str(path)]) == 1
    assert (
        f"replayed on {format_size(usable)}, which the recorded program could use" in capsys.readouterr().out
    )
    del found["device_memory"]  # PyTorch's snapshots lack it
    by_pytorch.write_bytes(pickle.dumps(found))
    main(["memory", "replay", str(by_pytorch)])
    assert f"replayed on {format_size(free)}, which" in capsys.readouterr().out
    found["device_traces"][0] = [event for event in found["device_traces"][0] if event["action"] != "oom"]
    by_pytorch.write_bytes(pickle.dumps(found))
    assert main(["memory", "replay", str(by_pytorch)]) == 0
    assert "unlimited memory, for the snapshot has no size of it" in capsys.readouterr().out


def test_json_and_older_forms_are_read(snapshot: Path, tmp_path: Path) -> None:
    output = tmp_path / "snapshot.json"
    assert main(["memory", str(snapshot), "-o", str(output)]) == 0
    assert json.loads(output.read_text())["segments"] == json.loads(
        json.dumps(snapshot_file.load(snapshot)["segments"])
    )
    traces = snapshot_file.load(output)["device_traces"]
    assert traces == json.loads(json.dumps(snapshot_file.load(snapshot)["device_traces"]))
    stacks = [event["frames"] for trace in traces for event in trace]
    assert len({id(stack) for stack in stacks}) == len({json.dumps(stack) for stack in stacks}) < len(stacks)
    old = tmp_path / "segments.pickle"
    old.write_bytes(pickle.dumps(snapshot_file.load(snapshot)["segments"]))
    assert pieces(memory_page.picture(snapshot_file.load(old))["devices"][0]["lives"])


def test_segments_alone_are_read_from_json_and_blocks_as_pytorch_2_0_has_them(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    used = {
        "size": 1024,
        "state": "active_allocated",
        "history": [{"addr": 0, "real_size": 1000, "frames": frames}],
    }
    segment = SEGMENT | {
        "total_size": 2048,
        "blocks": [used, {"size": 1024, "state": "inactive"}],
        "segment_pool_id": None,
    }
    path = tmp_path / "segments.json"
    path.write_text(json.dumps([segment]))
    found = memory_page.picture(snapshot_file.load(path))
    (life,) = pieces(found["devices"][0]["lives"])
    assert (life["size"], stack_of(found, life["stack"])) == (1000, ["a.py:3 in f"])
    assert [requested for _, requested, *_ in found["devices"][0]["segments"][0]["blocks"]] == [1000, 0]


def test_who_held_the_most_and_what_waited(tmp_path: Path) -> None:
    """At the event with the most in use; what was freed, but waits for other streams, is told apart."""
    with torch.virtual(devices=1, profile="v100-16g"):
        torch.cuda.memory._record_memory_history()
        side = torch.cuda.Stream()
        small = [torch.ones(1, device="cuda") for _ in range(100)]
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        torch.ones(MIB, device="cuda").record_stream(side)
        large = torch.ones(2 * MIB, device="cuda")
        found = memory_page.picture(torch.cuda.memory._snapshot())
        del small[0], large
    (device,) = found["devices"]
    curves, top = device["curves"], device["top"]
    assert curves["used"][0] == 0 and top["used"] == max(curves["used"]) == 8 * MIB + 400
    told = [
        (stack_of(found, h["place"])[0] if h["place"] >= 0 else "", h["size"], h["count"])
        for h in top["holders"]
    ]
    assert [(size, count) for _, size, count in told] == [(8 * MIB, 1), (4 * MIB, 1), (400, 100)]
    assert [not place for place, *_ in told] == [False, True, False]
    (pending,) = [life for life in pieces(device["lives"]) if life["size"] == 4 * MIB]
    assert pending["begin"] < pending["freed"] < pending["end"]


def test_memory_that_is_unmapped_in_part_is_reserved_no_more() -> None:
    event = {"addr": 0, "size": 8 * MIB, "stream": 0, "frames": []}
    middle = event | {"action": "segment_unmap", "addr": 2 * MIB, "size": 2 * MIB}
    trace = [event | {"action": "segment_map"}, middle, middle | {"action": "segment_map"}]
    (device,) = memory_page.picture({"segments": [], "device_traces": [trace]})["devices"]
    spans = sorted(
        (s["addr"] // MIB, s["size"] // MIB, s["begin"], s["end"]) for s in pieces(device["spans"])
    )
    assert spans == [(0, 2, 1, 3), (0, 8, 0, 1), (2, 2, 2, 3), (4, 4, 1, 3)]


def test_events_need_no_frames(snapshot: Path) -> None:
    """PyTorch's have none where history is recorded with `context=None`."""
    found = snapshot_file.load(snapshot)
    for event in found["device_traces"][0]:
        del event["frames"]
    assert pieces(memory_page.picture(found)["devices"][0]["lives"])


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


SEGMENT = {
    "address": 0, "total_size": 8, "allocated_size": 0, "stream": 0, "segment_type": "large", "blocks": [],
}  # fmt: skip
FRAMELESS = {"action": "alloc", "addr": 0, "size": 8, "stream": 0, "frames": [{"line": 1}]}
ADDRESS = {"action": "alloc", "addr": [], "size": 8, "stream": 0}
HUGE = {"action": "alloc", "addr": 1 << 64, "size": 8, "stream": 0}
SIZELESS = {"action": "alloc", "addr": 0, "size": "8", "stream": 0}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pickle.dumps(Evil()), "plain data"),
        (b"nonsense", "is not a memory snapshot"),
        (b"", "is not a memory snapshot"),
        (pickle.dumps({"a": 1}), "it has no segments"),
        (b"{", "is not a memory snapshot"),
        (
            pickle.dumps({"segments": [], "allocator_settings": {(1, 2): 3}}),
            "it has the key (1, 2), which JSON has not",
        ),
        (pickle.dumps({"segments": 3}), "segments should be a list, not int"),
        (pickle.dumps([1]), "a segment should be a dictionary, not int"),
        (pickle.dumps([{}]), "a segment has no 'address' of type int"),
        (pickle.dumps([SEGMENT | {"device": "x"}]), "the device of a segment is 'x'"),
        (pickle.dumps([SEGMENT | {"blocks": [{"size": 1}]}]), "a block has no 'state' of type str"),
        (
            pickle.dumps([SEGMENT | {"segment_pool_id": 3}]),
            "the pool of a segment should be two numbers, not 3",
        ),
        (pickle.dumps({"segments": [], "device_traces": [[ADDRESS]]}), "an event has no 'addr' of type int"),
        (b"\x80\x04}(]K\x01u.", "is not a memory snapshot: the pickle is damaged: TypeError: unhashable"),
        (b"\x80\x04\x8e" + b"\x7f" * 8, "is not a memory snapshot"),
        (
            pickle.dumps({"segments": [], "device_traces": [[FRAMELESS]]}),
            "a frame has no 'filename' of type str",
        ),
        (pickle.dumps({"segments": [], "device_traces": None}), "device_traces should be a list"),
        (b'{"segments": [], "device_traces": [3]}', "a trace should be a list, not int"),
        (
            json.dumps({"segments": [], "device_traces": [[FRAMELESS]]}).encode(),
            "a frame has no 'filename' of type str",
        ),
        (b'{"segments": [], "device_traces": [["alloc"]]}', "an event should be a dictionary, not str"),
        (pickle.dumps({"segments": [], "device_traces": [3]}), "a trace should be a list, not int"),
        (pickle.dumps({"segments": [], "device_traces": [[{}]]}), "an event has no 'action' of type str"),
        (pickle.dumps({"segments": [], "device_traces": [[SIZELESS]]}), "an event has no 'size' of type int"),
    ],
)
def test_other_files_are_refused(content: bytes, why: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for replay in ([], ["replay"]):
        assert main(["memory", *replay, str(path)]) == 2
        captured = capsys.readouterr()
        assert why in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_numbers_that_no_machine_has_are_refused(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[HUGE]]}))
    assert main(["memory", str(path)]) == 2
    assert "more than 64 bits" in capsys.readouterr().err


def test_wrong_arguments_are_refused(snapshot: Path, tmp_path: Path, capsys: Any) -> None:
    given = str(snapshot)
    for arguments, why in (
        ([str(tmp_path / "absent")], "can't open file"),
        ([str(tmp_path)], "it is a folder"),
        ([given, "-o", str(tmp_path)], "it is a folder"),
        ([given, "-o", str(tmp_path / "none" / "page.html")], "its folder does not exist"),
        (["replay", given, "--capacity", "much"], "--capacity 'much' is not a size"),
        (["replay", given, "--capacity", "9" * 400], "more than any device has"),
        (["replay", given, "--conf", "nonsense:1"], "--conf 'nonsense:1'"),
        (["replay", given, "--device", "7"], "no device 7"),
        (["replay", given, "-o", "page.html"], "--output is of pages alone"),
        ([given, "--device", "0"], "--device is of replay alone"),
        ([given, "--capacity", "1"], "--capacity is of replay alone"),
        ([given, "--conf", "backend:native"], "--conf is of replay alone"),
        ([given, given], "one snapshot at a time"),
        (["replay"], "replay needs a snapshot"),
    ):
        assert main(["memory", *arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("flambeau memory: ") and why in said and said.count("\n") == 1
    bare = tmp_path / "bare.pickle"
    bare.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    assert main(["memory", "replay", str(bare)]) == 2
    assert "no trace" in capsys.readouterr().err


def test_sizes() -> None:
    assert memory.size_of("24GiB") == 24 << 30
    assert memory.size_of("1.5 MiB") == 3 << 19
    assert memory.size_of("12") == 12
    assert memory.size_of("2GB") == 2 * 10**9
