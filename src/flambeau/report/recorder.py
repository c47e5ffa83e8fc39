"""`ProcessRecorder`: the record of a process's machines, and its form as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flambeau.core.callsite import file_of, line_of, place, source
from flambeau.observe.reports import Certificate, Race, RaceAccess
from flambeau.observe.tracing.range_recorder import RangeRecorder
from flambeau.observe.tracing.trace import TraceData, trace_of
from flambeau.observe.tracing.tracer import DriverTracer
from flambeau.runtime.devices.machine import Machine
from flambeau.runtime.hooks import annotations
from flambeau.runtime.memory import allocator_statistics
from flambeau.runtime.streams import wait_reason


@dataclass
class DeviceReport:
    """One device's memory, in bytes."""

    index: int
    name: str
    peak_allocated: int
    peak_reserved: int
    left_allocated: int


@dataclass
class MachineReport:
    """The report of one machine of the program: description, simulated time and certificate."""

    driver: str
    profile: str | None
    schedule: str | None
    races: str
    devices: list[DeviceReport]
    time_ns: int | None
    host_wait_ns: int | None  # of `time_ns`, in which the host waited for the devices
    # the median and the 90th percentile of the error to expect, as shares of `time_ns`
    time_error: tuple[float, float] | None
    rounds_to_tf32: bool  # True if products rounded float32 to TF32
    trace_hash: str | None
    token: str | None
    unplayed: str  # why the program does not match the replayed token
    certificate: Certificate | None


@dataclass
class ProcessRecorder:
    """A recorder of every machine that a process opens (`system.watch`)."""

    timeline: bool = False
    machines: list[MachineReport] = field(default_factory=list)
    traces: list[TraceData] = field(default_factory=list)
    _traced: dict[Machine, tuple[DriverTracer, RangeRecorder]] = field(default_factory=dict)

    @property
    def races(self) -> list[Race]:
        return [race for m in self.machines if m.certificate for race in m.certificate.races]

    @property
    def failed(self) -> bool:
        """Return True if a machine with `races="error"` had a race, even if the program caught the exception."""
        return any(m.races == "error" and m.certificate and m.certificate.races for m in self.machines)

    def before_open(self, machine: Machine) -> None:
        if self.timeline:
            tracer = DriverTracer(machine.driver, machine.bare, machine.visible, wait_reason.reason)
            ranges = RangeRecorder(tracer.source.clock)
            machine.driver, self._traced[machine] = tracer, (tracer, ranges)
            annotations.subscribe(ranges)
            for text in annotations.open_here():  # begun before the program first asked for a device
                ranges.on_range_begin(text, None)

    def after_open(self, machine: Machine) -> None:
        pass

    def before_close(self, machine: Machine) -> None:
        self.machines.append(machine_report(machine))
        if machine in self._traced:
            tracer, ranges = self._traced.pop(machine)
            annotations.unsubscribe(ranges)
            ranges.end_all()
            detector = getattr(machine.driver, "detector", None)
            self.traces.append(trace_of(tracer, ranges, detector.races if detector is not None else None))


def machine_report(machine: Machine) -> MachineReport:
    """Return the state of a started machine so far."""
    bare: Any = machine.bare
    detector = getattr(machine.driver, "detector", None)
    virtual = machine.settings.driver == "virtual"
    return MachineReport(
        driver=machine.settings.driver,
        profile=machine.settings.profile if virtual else None,
        schedule=machine.settings.schedule if virtual else None,
        races=machine.settings.races,
        devices=[_device_report(context) for context in machine.contexts],
        time_ns=bare.time_ns() if virtual else None,
        host_wait_ns=bare.host_wait_ns() if virtual else None,
        time_error=_time_error(bare) if virtual else None,
        rounds_to_tf32=any(context.rounds_to_tf32 for context in machine.contexts),
        trace_hash=bare.trace_hash() if virtual else None,
        token=bare.token() if virtual else None,
        unplayed=bare.explain_unplayed() if virtual else "",
        certificate=detector.certificate() if detector is not None else None,
    )


def _time_error(bare: Any) -> tuple[float, float] | None:
    """Return the expected error as a plain tuple, which pytest-xdist's workers can send."""
    error = bare.time_error()
    return None if error is None else (error.median, error.tenth)


def _device_report(context: Any) -> DeviceReport:
    name = context.backing.device_properties(context.driver_index).name
    allocator = context.allocator
    peak = allocator.ledger().peak[allocator_statistics.ALL]
    return DeviceReport(
        context.index,
        name,
        peak[allocator_statistics.ALLOCATED_BYTES],
        peak[allocator_statistics.RESERVED_BYTES],
        allocator.allocated_bytes(),
    )


def machine_fields(machine: MachineReport) -> dict[str, Any]:
    """Return a machine as the report's JSON has it: sizes in bytes, times in nanoseconds."""
    fields = asdict(replace(machine, certificate=None))
    if machine.certificate is not None:
        fields["certificate"] = _certificate(machine.certificate)
    return fields


def _certificate(certificate: Certificate) -> dict[str, Any]:
    return {
        "race_free": certificate.race_free,
        "assumptions": certificate.assumptions,
        "violated": certificate.violated,
        "races": [race_fields(race) for race in certificate.races],
    }


def race_fields(race: Race) -> dict[str, Any]:
    """Return a race in the form of the JSON report."""
    begin, end = race.range
    return {
        "first": _side(race.first), "second": _side(race.second), "device": race.device, "nbytes": end - begin,
        "count": race.count, "reused": race.reused, "note": race.note,
        "fix": {
            "call": race.fix.call, "text": race.fix.text, "where": race.fix.where, "code": race.fix.code,
            "hint": race.fix.hint, "verified": race.fix.verified, "edits": [asdict(edit) for edit in race.fix.edits],
        },
        "allocated": place(race.allocated) if race.allocated else None,
        "freed": place(race.freed) if race.freed else None,
    }  # fmt: skip


def _side(side: RaceAccess) -> dict[str, Any]:
    created = side.stream_site
    return {
        "kind": side.kind, "operator": side.name or side.operator, "stream": side.stream, "place": side.place,
        "when": side.when,
        "file": file_of(side.site), "line": line_of(side.site),
        "source": source(side.site), "stream_created": place(created) if created else None, "shape": side.shape,
        "dtype": side.dtype, "begin": side.begin, "end": side.end,
        "launched": place(side.launched) if side.launched else None,
    }  # fmt: skip
