"""The parts of the race detector, each alone: launches of graphs, accesses of the host, checks of commands."""

from __future__ import annotations

from typing import Any

from fake_drivers import StillDriver

from flambeau.core.callsite import caller
from flambeau.observe.capture_log import Tape
from flambeau.observe.command_checks import CommandChecks
from flambeau.observe.detector import Detector
from flambeau.observe.pinned.pinned_accesses import PinnedUse
from flambeau.observe.race_builder import READ, WRITE

PTR, SIZE = 1 << 32, 4096


def detector_with_memory(host: bool = False) -> Detector:
    """Return a detector of streams 1 and 2, and of one block."""
    detector = Detector()
    for stream in (1, 2):
        detector.add_stream(0, stream, None, default=stream == 1)
    detector.enter()
    detector.own(PTR, SIZE, None, caller(), host=host)
    return detector


def checks_of(detector: Detector, tapes: dict[int, Tape] | None = None) -> CommandChecks:
    driver: Any = StillDriver()
    return CommandChecks(driver, detector, {} if tapes is None else tapes, {0: 0}, lambda error: None)


def test_copies_of_unordered_streams_race_unless_they_have_no_bytes() -> None:
    detector = detector_with_memory()
    checks = checks_of(detector)
    checks.check(1, "fill", [(PTR, SIZE)], 1)
    checks.check(2, "fill", [(PTR, 0)], 1)
    assert detector.races == []
    checks.check(2, "fill", [(PTR, SIZE)], 1)
    assert [(race.first.operator, race.second.operator) for race in detector.races] == [("fill", "fill")]


def test_commands_of_a_captured_stream_are_checked_at_a_launch_only() -> None:
    detector, tape = detector_with_memory(), Tape(2)
    checks = checks_of(detector, {2: tape})
    checks.check(1, "fill", [(PTR, SIZE)], 1)
    checks.check(2, "fill", [(PTR, SIZE)], 1)
    assert detector.races == []
    tape.play(detector, 2, caller())
    assert len(detector.races) == 1


def test_captured_blocks_are_those_that_existed_before_the_capture() -> None:
    detector = detector_with_memory()
    detector.graphs.begin_capture()
    detector.own(PTR + SIZE, SIZE, None, caller())
    detector.graphs.end_capture()
    blocks = detector.graphs.captured_blocks([PTR, PTR + SIZE, PTR + 2 * SIZE])
    assert [block.start for block in blocks] == [PTR]


def test_a_command_belongs_to_the_launch_during_which_it_was_enqueued() -> None:
    detector = detector_with_memory()
    checks = checks_of(detector)
    with detector.graphs.launching(7, 1, caller()):
        checks.check(1, "fill", [(PTR, SIZE)], 1)
    inside = detector.shadow.cells[PTR, SIZE].write
    checks.check(1, "fill", [(PTR, SIZE)], 1)
    outside = detector.shadow.cells[PTR, SIZE].write
    assert inside is not None and outside is not None
    assert detector.graphs.launch_of(inside) is detector.graphs.launches[7]
    assert detector.graphs.launch_of(outside) is None
    detector.graphs.forget(7)
    assert detector.graphs.launch_of(inside) is None


def test_a_host_access_races_with_a_command_until_the_host_waits_for_it() -> None:
    detector = detector_with_memory(host=True)
    checks_of(detector).check(1, "copy_out", [(PTR, SIZE)], 1)
    detector.host.add_command(PinnedUse(PTR, SIZE, WRITE, False), 1)
    assert [kind for _, kind, _ in detector.host.pending(PTR, 1)] == [WRITE]
    detector.host.check(PTR, SIZE, READ, ("a read", (), 0))
    assert len(detector.races) == 1
    detector.host_waited([detector.point_of(1)])
    assert not detector.host.cells
    detector.host.check(PTR, SIZE, WRITE, ("a write", (), 0))
    assert len(detector.races) == 1
