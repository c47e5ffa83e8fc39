"""The timeline of a virtual machine: lanes, edges, the picture."""

from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from race_kit import machine, meta, run, wait

from flambeau.driver.virtual import VirtualDriver
from flambeau.observe.tracing.picture import format_ns
from flambeau.observe.tracing.timeline import Timeline, svg

SVG = "{http://www.w3.org/2000/svg}"
M = meta((1 << 10,))


def watched(synchronized):
    driver = VirtualDriver(devices=2, profile="a100-40g")
    timeline = Timeline()
    driver.on_command = timeline.add
    gpu, _ = machine("warn", driver)
    side, host = gpu.stream_create(0, 0), gpu.host_alloc(1 << 12)
    default = gpu.stream_default(0)
    a, out = gpu.mem_alloc(0, 1 << 12), gpu.mem_alloc(0, 1 << 12)
    gpu.copy_in(a, host, side)
    if synchronized:
        wait(gpu, default, side)
    run(gpu, "sum<&>", [(out, M)], [(a, M)], default)
    gpu.fill(gpu.mem_alloc(1, 512), 0, 512, gpu.stream_default(1))
    gpu.device_sync(0)
    gpu.device_sync(1)
    return timeline, gpu.detector.races


def test_lanes_and_edges():
    timeline, races = watched(True)
    assert races == []
    assert [[r.kind for r in lane] for lane in timeline.work().values()] == [
        ["kernel"],
        ["copy_in"],
        ["fill"],
    ]
    ((earlier, later),) = timeline.edges()
    assert (earlier.kind, later.name) == ("copy_in", "sum<&>")
    assert earlier.end_ns <= later.start_ns


def test_the_picture_marks_racing_commands():
    timeline, races = watched(False)
    root = ElementTree.fromstring(svg(timeline, races))
    marked = [r for r in root.iter(f"{SVG}rect") if r.get("stroke") == "#e03131"]
    assert len(races) == 1 and len(marked) == 2
    titles = [t.text for t in root.iter(f"{SVG}title")]
    assert any(title.startswith("sum<&>: ") for title in titles)
    assert "wait_stream" in "".join(root.itertext())
    calm = ElementTree.fromstring(svg(*watched(True)))
    assert not [r for r in calm.iter(f"{SVG}rect") if r.get("stroke") == "#e03131"]


@dataclass
class Small:
    seq: int
    index: int = 0
    stream: int = 1
    kind: str = "kernel"
    name: str = "add"
    nbytes: int = 4
    waits: tuple = ()

    @property
    def start_ns(self):
        return 10 * self.seq

    @property
    def end_ns(self):
        return 10 * self.seq + 9


def test_commands_too_thin_to_see_share_a_bar():
    timeline = Timeline()
    for seq in range(50_000):
        timeline.add(Small(seq))
    assert len(svg(timeline)) < 20_000


def test_an_empty_timeline_is_a_picture_too():
    assert ElementTree.fromstring(svg(Timeline())).tag == f"{SVG}svg"


@pytest.mark.parametrize(("ns", "text"), [(0, "0"), (999, "999 ns"), (1500, "1.5 µs"), (2 * 10**9, "2 s")])
def test_times_are_readable(ns, text):
    assert format_ns(ns) == text
