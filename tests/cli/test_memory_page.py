"""The page of `flambeau memory` where there is much: it is worked out in columns, and shows what can be seen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_kit import in_browser, needs_chromium, pieces, stack_of

from flambeau.cli.output import memory_page

MIB = 1 << 20
FRAMES: list[list[dict[str, Any]]] = [
    [{"filename": f"{text}.py", "line": n, "name": "f"} for n, text in enumerate(texts)]
    for texts in ("", "a", "ab")
]
EVENTS = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["alloc", "free_requested", "free_completed", "snapshot"]),
        "addr": st.integers(0, 4).map(lambda n: 512 * n), "size": st.integers(1, 512), "stream": st.integers(0, 2),
        "frames": st.sampled_from(FRAMES),
    }
)  # fmt: skip
BLOCKS = st.fixed_dictionaries(
    {
        "size": st.just(512), "requested_size": st.integers(1, 512), "frames": st.sampled_from(FRAMES),
        "state": st.sampled_from(["inactive", "active_allocated", "active_awaiting_free"]),
    }
)  # fmt: skip


def segment_of(blocks: list[dict[str, Any]], **chosen: Any) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    return {
        "address": 0, "total_size": total, "allocated_size": 0, "stream": 0, "segment_type": "large", "blocks": blocks,
    } | chosen  # fmt: skip


def one_device(trace: list[dict[str, Any]], *segments: dict[str, Any]) -> dict[str, Any]:
    (device,) = memory_page.picture({"segments": segments, "device_traces": [trace]})["devices"]
    return device


def lives_step_by_step(trace: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(address, size, begin, freed, end, lines of the stack): what happened, one event after the other."""
    lives: list[dict[str, Any]] = []
    begun: dict[int, dict[str, Any]] = {}
    end = max(len(trace), 1)

    def begin(addr: int, size: int, at: int, frames: Any) -> dict[str, Any]:
        lives.append(
            {"addr": addr, "size": size, "begin": at, "freed": end, "end": end, "stack": len(frames)}
        )
        return lives[-1]

    for at, event in enumerate(trace):
        addr = event["addr"]
        if event["action"] == "alloc":
            begun[addr] = begin(addr, event["size"], at, event["frames"])
        elif event["action"] == "free_requested" and addr in begun:
            begun[addr]["freed"] = at
        elif event["action"] == "free_completed":
            life = begun.pop(addr, None) or begin(addr, event["size"], 0, [])
            life["end"], life["freed"] = at, min(life["freed"], at)
    for number, block in enumerate(blocks):
        if block["state"] != "inactive" and 512 * number not in begun:
            life = begin(512 * number, block["requested_size"], 0, block["frames"])
            life["freed"] = end if block["state"] == "active_allocated" else 0
    return sorted(tuple(life.values()) for life in lives)


@given(st.lists(EVENTS, max_size=30), st.lists(BLOCKS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_lives_and_curves_are_those_of_the_events_one_by_one(
    trace: list[dict[str, Any]], blocks: list[dict[str, Any]]
) -> None:
    found = memory_page.picture({"segments": [segment_of(blocks)], "device_traces": [trace]})
    (device,) = found["devices"]
    lives = [{**life, "stack": len(stack_of(found, life["stack"]))} for life in pieces(device["lives"])]
    names = ("addr", "size", "begin", "freed", "end", "stack")
    assert sorted(tuple(life[name] for name in names) for life in lives) == lives_step_by_step(trace, blocks)
    used = [sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated")]
    for event in reversed(trace):
        used.append(used[-1] + {"alloc": -1, "free_requested": 1}.get(event["action"], 0) * event["size"])
    shown = [max(bytes, 0) for bytes in reversed(used[:-1])] + [used[0]]
    assert device["curves"]["used"] == shown and device["curves"]["at"] == [*range(len(shown))]
    assert device["top"]["used"] == max(shown) == shown[device["top"]["at"]]


def test_what_is_left_out_of_a_long_trace_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = []
    for i in range(100):
        event = {"addr": 512 * i, "size": 512, "stream": 0, "frames": []}
        trace += [event | {"action": "alloc"}] + [event | {"action": "snapshot"}] * (i % 2)
        trace += [event | {"action": "free_completed"}]
    monkeypatch.setattr(memory_page, "_MOST_LIVES", 50)
    packed = one_device(trace)["lives"]
    assert packed["left_out"] == 50
    assert {life["end"] - life["begin"] for life in pieces(packed)} == {2}
    assert pieces(packed)[-1]["addr"] == 512 * 99  # of the whole trace, not of its beginning


def test_of_lives_alike_those_left_out_lie_evenly_over_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"addr": 512, "size": 512, "stream": 0, "frames": []}
    trace = [event | {"action": action} for _ in range(1000) for action in ("alloc", "free_completed")]
    monkeypatch.setattr(memory_page, "_MOST_LIVES", 100)
    packed = one_device(trace)["lives"]
    begins = [life["begin"] for life in pieces(packed)]
    assert begins == sorted(begins) and len(begins) == 100 and packed["left_out"] == 900
    gaps = [after - before for before, after in itertools.pairwise([0, *begins, len(trace)])]
    assert max(gaps) <= 4 * len(trace) // 100


def test_curves_keep_the_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_page, "_MOST_POINTS", 10)
    trace = [
        {"action": action, "addr": 512 * i, "size": 512 * (1 + i % 7), "stream": 0}
        for i in range(100)
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free")
    ]
    curves = one_device(trace)["curves"]
    assert (len(curves["at"]), curves["stretch"]) == (10, 51)
    assert set(curves["used"]) == set(curves["reserved"]) == {512 * 7}


def test_neighbours_too_small_to_be_told_apart_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_page, "_MOST_PIECES", 4)
    small = {"size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
    large = small | {"size": 4096, "requested_size": 4000}
    blocks = [small, large, small, small | {"state": "inactive", "requested_size": 0}, small, small, large]
    (segment,) = one_device([], segment_of(blocks))["segments"]
    assert segment["blocks"] == [
        [512, 512, "several", 1], [4096, 4000, "active_allocated", 0], [2048, 1536, "several", 4],
        [4096, 4000, "active_allocated", 0],
    ]  # fmt: skip
    assert len(one_device([], segment_of(blocks[:4]))["segments"][0]["blocks"]) == 4  # few are as they are


def test_of_many_segments_and_refusals_some_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_page, "_MOST_SEGMENTS", 2)
    monkeypatch.setattr(memory_page, "_MOST_OOMS", 3)
    block = {"size": 512, "requested_size": 0, "state": "inactive"}
    segments = [segment_of([block] * n, address=MIB * n) for n in (1, 3, 2)]
    refused = [{"action": "oom", "size": n, "stream": 0, "device_free": 0} for n in range(5)]
    device = one_device(refused, *segments)
    assert [segment["size"] for segment in device["segments"]] == [3 * 512, 2 * 512]
    assert device["segments_left_out"] == 1 and device["curves"]["reserved"][-1] == 6 * 512
    assert [oom["size"] for oom in device["ooms"]] == [2, 3, 4] and device["refused"] == 5


def long_trace(rounds: int) -> list[dict[str, Any]]:
    """One piece that stays, and beside it many that come and go; a lone one in the middle is freed and waits."""
    event = {"stream": 0, "frames": FRAMES[1]}
    trace = [event | {"action": "segment_alloc", "addr": MIB, "size": 4 * MIB}]
    trace.append(event | {"action": "alloc", "addr": MIB, "size": MIB, "frames": FRAMES[2]})
    for i in range(rounds):
        piece = event | {"addr": (2 + i % 2) * MIB, "size": MIB}
        trace += [piece | {"action": action} for action in ("alloc", "free_requested", "free_completed")]
        if i == rounds // 2:
            lone = event | {"addr": 4 * MIB, "size": 700_000, "stream": 1}
            trace += [lone | {"action": "alloc"}, lone | {"action": "free_requested"}]
            trace += [event | {"action": "snapshot", "addr": 0, "size": 0}] * 2
            trace += [lone | {"action": "free_completed"}]
    return trace


@needs_chromium
def test_a_long_trace_in_a_browser(tmp_path: Path) -> None:
    """What is smaller than a pixel is said, seen, and told apart by zooming in."""
    trace = long_trace(20_000)
    used = {"size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": FRAMES[2]}
    free = {"requested_size": 0, "state": "inactive"}
    small = [used | {"size": 512, "requested_size": 512}, free | {"size": 512}] * 1024
    segments = [
        segment_of([used, free | {"size": 3 * MIB}], address=MIB),
        segment_of(small, address=8 * MIB),
    ]
    output = tmp_path / "report.html"
    output.write_text(memory_page.page({"segments": segments, "device_traces": [trace]}, "long"))
    lone = next(at for at, event in enumerate(trace) if event["size"] == 700_000)
    script = f"""
      const told = [$("note").textContent], r = $("timeline").getBoundingClientRect();
      const hover = (at, share) => {{
        const y = r.top + TOP + (1 - share) * (r.height - TOP - BOTTOM);
        $("timeline").onmousemove(new MouseEvent("mousemove", {{ clientX: r.left + across(at, r.width), clientY: y }}));
        told.push(tip.textContent);
      }};
      hover(30000, 0.1); hover(30000, 0.3); hover({lone} + 2, 0.65);
      look({lone} - 20, {lone} + 20); draw();
      told.push($("note").textContent);
      hover({lone} + 0.5, 0.65); hover({lone} + 2, 0.65); hover({lone} - 10, 0.65);
      const shade = at => [...$("timeline").getContext("2d").getImageData(across(at, r.width), TOP + 0.35 * (r.height - TOP - BOTTOM), 1, 1).data].slice(0, 3).join();
      told.push(new Set([shade({lone} + 0.5), shade({lone} + 2), shade({lone} - 10)]).size);
      const turn = {{ deltaY: -1, shiftKey: true, clientX: r.left + 300, clientY: r.top + TOP + 0.1 * (r.height - TOP - BOTTOM) }};
      for (let i = 0; i < 20; i++) {{ $("timeline").dispatchEvent(new WheelEvent("wheel", turn)); draw(); }}
      told.push($("note").textContent);
      hover({lone}, 0.9);
      if (!tip.textContent.startsWith("512 B")) hover({lone}, 0.9 + 513 / (shown[1] - shown[0]));
      $("reset").onclick(); draw();
      told.push([tip.textContent, ...view, ...shown].join());
      const bar = $("segments").querySelectorAll("canvas")[1], b = bar.getBoundingClientRect();
      bar.onmousemove(new MouseEvent("mousemove", {{ clientX: b.left + 0.3 * b.width, clientY: b.top }}));
      told.push(tip.textContent);
    """
    whole, stays, goes, waits, zoomed, lone_told, pending, unused, shades, *higher, several = in_browser(
        output, script
    )
    assert whole.startswith("21,025 of the 21,026 pieces in view are smaller than a pixel")
    assert stays.startswith("1.00 MiBevents 1 to ") and "b.py:1" in stays
    assert goes.startswith("1.00 MiBevents ") and "a.py:0" in goes
    assert waits.startswith("684 KiBevents ") and "waiting for other streams, stream 1" in waits
    assert zoomed.startswith("1,024 of the 1,0")
    assert lone_told == pending == waits
    assert unused.startswith("Reserved and unuseda part of 4.00 MiB, events 0 to ")
    assert shades == "3"  # in use, waiting, reserved and unused
    assert higher[0] == "" and higher[-1].startswith("512 Bevents 0 to ")  # apart now
    assert higher[-1].endswith(f",0,{len(trace)},0,{5 * MIB}")
    assert " small blocks" in several and " in use, from 0x" in several
