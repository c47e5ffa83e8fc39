"""The pytest plugin: tests of torch.cuda programs on virtual GPUs, under many schedules, with races as errors.

`pytest --virtual-gpus=2 --gpu-schedules=50 --gpu-races=error` works in any repository: `import torch` imports Flambeau,
each test has its own virtual GPUs, and runs once per schedule. Without `--virtual-gpus` only tests with the fixture
`virtual_gpus` are affected.

The schedule is part of a test's name, so the name alone repeats the run. If a test's first run in the same process was
certified race-free under every schedule, the test passes under the other schedules without being run. If it fails by a
race that it failed by under another schedule, the report says "same race", also across workers of pytest-xdist. pytest
cannot parametrize methods of `unittest.TestCase`, so they are collected once for each schedule.
"""

from __future__ import annotations

import io
import os
import shlex
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import pytest

from flambeau.cli import import_hook
from flambeau.cli.output.console import Screen
from flambeau.cli.output.race_entries import write_races
from flambeau.cli.plugin_reports import (
    WITHOUT_TORCH,
    Reports,
    add_options,
    check_options,
    lacks_torch,
    reports_here,
    set_properties,
)
from flambeau.core.callsite import is_inside
from flambeau.core.errors import RaceError
from flambeau.observe import handovers
from flambeau.observe.reports import Certificate
from flambeau.report.child_reports import ChildReports
from flambeau.report.document import races_of
from flambeau.report.recorder import machine_fields, machine_report
from flambeau.runtime import system
from flambeau.runtime.devices import configuration

_FIXTURE = "_gpu_schedule"
_KINDS = ("random:{}", "pct:{}:1", "adversarial:{}", "pct:{}:2", "pct:{}:3")
_LONGEST = 40  # characters of a schedule in a test's name, because tokens are long
_CERTIFIED = pytest.StashKey[set[str]]()
_RUN = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flambeau", "virtual GPUs (flambeau)")
    group.addoption(
        "--virtual-gpus", type=int, metavar="N", help="run every test on N virtual GPUs; torch is Flambeau"
    )
    group.addoption(
        "--gpu-profile", metavar="NAME", help="which GPU they model: a100-40g, h100, ... or a TOML file"
    )
    group.addoption(
        "--gpu-schedules", type=int, default=1, metavar="N", help="run each test under N schedules (1)"
    )
    group.addoption(
        "--gpu-schedule", metavar="S", help="run each test under this one schedule, as replay:TOKEN"
    )
    group.addoption(
        "--gpu-races", choices=("off", "warn", "error"), default="error",
        help="look for races: report them, or fail the test (error)",
    )  # fmt: skip
    group.addoption(
        "--float32-precision", choices=("highest", "high", "medium"),
        help="highest: round no float32 product to TF32; high, medium: round (the default)",
    )  # fmt: skip
    add_options(group)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Any:
    """Install Flambeau as torch before a repository's `conftest.py` imports it."""
    options = early_config.known_args_namespace
    if (options.virtual_gpus or 0) > 0:
        with suppress(pytest.UsageError):  # reported below, with other errors of the command line
            _install(options.virtual_gpus, options.gpu_profile)
    try:
        return (yield)
    except Exception as error:  # pytest's ConftestImportFailure
        cause = getattr(error, "cause", None)
        if isinstance(cause, ModuleNotFoundError) and lacks_torch(str(cause)):
            cause.add_note(WITHOUT_TORCH)
        raise


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu_schedules(n): run this test under n schedules of virtual GPUs")
    config.stash[_CERTIFIED] = set()
    check_options(config)
    if reports_here(config):
        config.pluginmanager.register(Reports(config), "flambeau-reports")
    wanted = config.getoption("virtual_gpus")
    if config.getoption("float32_precision") is not None:
        os.environ["FLAMBEAU_FLOAT32_PRECISION"] = config.getoption("float32_precision")
        import_module("flambeau.backends.matmul_flags").follow_environment()
    if config.getoption("gpu_schedules") < 1 or (wanted is not None and wanted < 1):
        raise pytest.UsageError("--virtual-gpus and --gpu-schedules must be at least 1")
    _check(config, "gpu_profile", "flambeau.driver.virtual.profile", "load_profile")
    _check(config, "gpu_schedule", "flambeau.driver.virtual.scheduling.schedule_policy", "open_policy")
    if wanted is not None:
        _install(wanted, config.getoption("gpu_profile"))


def _install(count: int, profile: str | None) -> None:
    """Make `import torch` find Flambeau from now on. The call is idempotent.

    Outside of tests there are as many GPUs as in them: `skipif(not torch.cuda.is_available())` asks while tests
    are collected, and fixtures of a session before its first test.
    """
    # the command line's options override these
    for name in ("FLAMBEAU_SCHEDULE", "FLAMBEAU_RACES", "FLAMBEAU_DRIVER"):
        os.environ.pop(name, None)
    handovers.unwatch_process()  # each test records synchronization itself
    os.environ["FLAMBEAU_VIRTUAL_DEVICES"] = str(count)
    if profile is not None:
        os.environ["FLAMBEAU_VIRTUAL_PROFILE"] = profile
    try:
        import_hook.install()
    except RuntimeError as error:
        raise pytest.UsageError(
            f"--virtual-gpus: {error}: another plugin imported it; take that out (-p no:NAME)"
        ) from None


def _check(config: pytest.Config, option: str, module: str, reader: str) -> None:
    """Refuse unreadable settings once for all tests. Without settings, nothing is imported."""
    text = config.getoption(option)
    if text is not None:
        try:
            getattr(import_module(module), reader)(text)
        except ValueError as error:
            raise pytest.UsageError(f"--{option.replace('_', '-')}: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test for each schedule, if there are several schedules or one other than the default."""
    config = metafunc.config
    if config.getoption("virtual_gpus") is None and "virtual_gpus" not in metafunc.fixturenames:
        return
    schedules = _schedules(metafunc.definition)
    if schedules != ["earliest"]:
        metafunc.fixturenames.append(_FIXTURE)
        metafunc.parametrize(_FIXTURE, schedules, indirect=True, ids=[s[:_LONGEST] for s in schedules])


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> Any:
    """Collect each method of a `unittest.TestCase` once for each schedule."""
    found = yield
    if (
        isinstance(found, pytest.Class)
        and _is_unittest(obj)
        and collector.config.getoption("virtual_gpus") is not None
    ):
        collect = found.collect
        found.collect = lambda: [one for item in collect() for one in _under_each_schedule(item)]  # type: ignore[method-assign]
    return found


def _is_unittest(obj: object) -> bool:
    return isinstance(obj, type) and issubclass(obj, unittest.TestCase)


def _under_each_schedule(item: Any) -> list[Any]:
    schedules = _schedules(item)
    if schedules == ["earliest"]:
        return [item]
    kind: Any = type("ScheduledMethod", (_ScheduledMethod, type(item)), {})
    return [kind.from_parent(item.parent, name=f"{item.name}[{s[:_LONGEST]}]", schedule=s) for s in schedules]


class _ScheduledMethod:
    """A mixin for pytest's item of a TestCase method whose name includes the schedule."""

    name: str
    parent: Any

    def __init__(self, *args: Any, schedule: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schedule = schedule

    @property
    def originalname(self) -> str:
        return self.name.partition("[")[0]

    @originalname.setter
    def originalname(self, value: str) -> None:
        """Ignore the name that pytest assigns."""

    def _getinstance(self) -> unittest.TestCase:
        case: unittest.TestCase = self.parent.obj(self.originalname)
        return case

    def runtest(self) -> None:
        if _is_certified(self):
            return
        name, self.name = self.name, self.originalname
        try:
            super().runtest()  # type: ignore[misc]
        finally:
            self.name = name


def _schedules(item: pytest.Item) -> list[str]:
    one = item.config.getoption("gpu_schedule")
    if one is not None:
        return [one]
    marker = item.get_closest_marker("gpu_schedules")
    count = item.config.getoption("gpu_schedules")
    if marker is not None:
        count = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise pytest.UsageError(f"{item.nodeid}: gpu_schedules takes one integer of at least 1")
    kinds = len(_KINDS)
    return ["earliest", *[_KINDS[i % kinds].format(i // kinds) for i in range(count - 1)]]


@pytest.fixture
def _gpu_schedule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _virtual_machine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open separate virtual GPUs for a test, around its other fixtures."""
    config = request.config
    if config.getoption("virtual_gpus") is None and "virtual_gpus" not in request.fixturenames:
        yield None
        return
    schedule = _schedule_of(request.node)
    devices = config.getoption("virtual_gpus") or configuration.DEVICES
    races = config.getoption("gpu_races")
    with (
        system.virtual(devices, config.getoption("gpu_profile"), schedule, races) as machine,
        _children(races, schedule) as children,
    ):
        request.node.stash[_RUN] = (machine, schedule, devices, children)
        yield machine
        for index in range(_count_open_devices()):
            system.accelerator().device_sync(index)


@contextmanager
def _children(races: str, schedule: str) -> Iterator[ChildReports]:
    """Make a test's child processes detect races under the test's schedule, and report them."""
    wanted = {"FLAMBEAU_RACES": races}
    if not schedule.startswith("replay:"):  # a token is valid only for the test's machine
        wanted["FLAMBEAU_SCHEDULE"] = schedule
    before = {name: os.environ.get(name) for name in wanted}
    children = ChildReports()
    children.open()
    os.environ.update(wanted)
    try:
        yield children
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text
        children.close()


def _schedule_of(item: Any) -> str:
    if isinstance(item, _ScheduledMethod):
        return item.schedule
    spec = getattr(item, "callspec", None)
    schedule: str = "earliest" if spec is None else spec.params.get(_FIXTURE, "earliest")
    return schedule


@pytest.fixture
def virtual_gpus(_virtual_machine: Any) -> Any:
    """Return the test's virtual GPUs, as `flambeau.virtual` gives them; `.driver` has the trace hash and the token."""
    return _virtual_machine


def _count_open_devices() -> int:
    return len(system.contexts()) if system.is_initialized() else 0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Pass a test that is certified for every schedule; otherwise leave it to pytest."""
    return True if _is_certified(pyfuncitem) else None


def _is_certified(item: Any) -> bool:
    run = item.stash.get(_RUN, None)
    return run is not None and run[1] != "earliest" and _name(item) in item.config.stash[_CERTIFIED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add to the test's report the certificate, or the command that repeats a failure."""
    run = item.stash.get(_RUN, None)
    if run is not None:
        for error in (
            call.excinfo,
            *(getattr(item, "_excinfo", None) or ()),
        ):  # unittest's, which pytest keeps there
            if error is not None:
                _hide_own_frames(error)
    report = yield
    if run is None:
        return report
    machine, schedule, devices, children = run
    race, races, processes = None, "", []
    if call.when == "call":
        processes = children.read()
        races = _judge(item, machine, schedule, report, processes)
        if call.excinfo is not None and call.excinfo.errisinstance(RaceError):
            race = str(call.excinfo.value).partition("\n")[0]
    if call.when == "call" or report.failed:
        replay = _replay(item, machine, devices) if report.failed or races else None
        if report.failed:
            report.sections.append(("virtual GPUs", f"replay: {replay}"))
        set_properties(item, races or None, replay)
        report.flambeau = {
            "name": _name(item), "schedule": schedule, "race": race, "fixes": _fixes(machine, processes),
            "counts": _counts(item, call, report, bool(races)),
            "document": _document(item, machine, schedule, replay, processes) if replay is not None else None,
        }  # fmt: skip
    return report


def _judge(
    item: pytest.Item, machine: Any, schedule: str, report: pytest.TestReport, processes: list[dict[str, Any]]
) -> str:
    """Return the races of a finished test. Fail the test if no exception was raised for them."""
    certificate = _certificate(machine)
    proved = certificate is not None and certificate.race_free and all(map(_is_proved, processes))
    if report.passed and schedule == "earliest" and proved:
        item.config.stash[_CERTIFIED].add(_name(item))
    races = _races_text(certificate, processes)
    if report.passed and races:
        # The test caught the error, or a process that the test started raised it.
        if item.config.getoption("gpu_races") == "error":
            report.outcome, report.longrepr = "failed", races
        else:
            report.sections.append(("races", races))
    return races


def _fixes(machine: Any, processes: list[dict[str, Any]]) -> list[str]:
    """Return the fix of each race of a test and of the processes that it started."""
    certificate = _certificate(machine)
    own = [race.fix.text for race in certificate.races] if certificate is not None else []
    return [*own, *[race["fix"]["text"] for race in races_of({"processes": processes})]]


def _is_proved(process: dict[str, Any]) -> bool:
    """Return True if a child process of the test is certified race-free on each of its machines."""
    certificates = [machine["certificate"] for machine in process["machines"]]
    return bool(process["finished"]) and all(each is not None and each["race_free"] for each in certificates)


def _races_text(certificate: Certificate | None, processes: list[dict[str, Any]]) -> str:
    """Return the races of a test and of the processes that it started, as text; empty if there are none."""
    text = io.StringIO()
    if certificate is not None and certificate.races:
        print(certificate, file=text)
    if races := list(races_of({"processes": processes})):
        names = ", ".join(dict.fromkeys(race["process"] for race in races))
        print(f"In processes that the test started ({names}):", file=text)
        write_races(races, Screen(text))
    return text.getvalue().rstrip("\n")


def _counts(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, has_races: bool
) -> list[str]:
    """Return the test's category in pytest's summary."""
    if call.when != "call":
        return []
    certified = ["certified"] if _is_certified(item) else []
    racy = ["racy"] if report.passed and has_races else []
    return ["runs", *certified, *racy]


def _document(
    item: pytest.Item, machine: Any, schedule: str, replay: str, processes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the test in the report's JSON."""
    machines = []
    if not machine.closed and system.is_initialized():
        machines = [machine_fields(machine_report(machine._machine))]
    return {
        "test": item.nodeid,
        "schedule": schedule,
        "replay": replay,
        "machines": machines,
        "processes": processes,
    }


def _hide_own_frames(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Hide Flambeau's frames in a traceback, as `flambeau run` does. `--full-trace` shows them."""
    for entry in error.traceback:
        if is_inside(entry.frame.code.raw):
            entry.frame.f_globals["__tracebackhide__"] = True


def _certificate(machine: Any) -> Certificate | None:
    if machine.closed or not system.is_initialized():
        return None
    detector = getattr(system.accelerator(), "detector", None)
    found: Certificate | None = detector.certificate() if detector is not None else None
    return found


def _replay(item: pytest.Item, machine: Any, devices: int) -> str:
    """Return the line that repeats this order of commands."""
    options = ["--virtual-gpus", str(devices)]
    if profile := item.config.getoption("gpu_profile"):
        options += ["--gpu-profile", profile]
    races = item.config.getoption("gpu_races")
    if races != "error":
        options += ["--gpu-races", races]
    token = "replay:" + machine.driver.token()
    return shlex.join(["pytest", *options, "--gpu-schedule", token, _name_with_token(item, token[:_LONGEST])])


def _name_with_token(item: pytest.Item, token: str) -> str:
    """Return a test's name under the schedule of a token."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return item.nodeid.partition("[")[0]
    if _FIXTURE in spec.params:
        function, bracket, others = item.nodeid.partition("[")
        return function + bracket + others.replace(spec.params[_FIXTURE][:_LONGEST], token, 1)
    return f"{item.nodeid.removesuffix(f'[{spec.id}]')}[{token}-{spec.id}]"


def _name(item: pytest.Item) -> str:
    """Return a test's name without its schedule but with its own parameters."""
    return _name_with_token(item, "")
