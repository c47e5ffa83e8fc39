"""`flambeau explore`: run a torch program in every order of its commands that can make a difference."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import signal
import site
import sys
from contextlib import redirect_stdout
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FunctionType, ModuleType

from flambeau.cli import import_hook
from flambeau.cli.environment import add_computation_options, export_computation_options, why_not_readable
from flambeau.cli.output.explore_report import exploration_document, write_exploration, write_first
from flambeau.cli.output_files import add_fixes, add_outputs, why_no_outputs, write_fixes, write_outputs
from flambeau.cli.progress import Progress
from flambeau.cli.run import INTERRUPTED, RACE_STATUS, execute, exit_status, processes_so_far
from flambeau.cli.signals import Stopping, Terminated
from flambeau.cli.tracebacks import traceback_of
from flambeau.cli.trailing_options import take_last
from flambeau.core.errors import RaceError
from flambeau.runtime import system
from flambeau.runtime.devices import configuration
from flambeau.testing.exploration import Exploration
from flambeau.testing.explore import POLICIES, explore, is_policy
from flambeau.testing.failures import Failure

_SCHEDULES = 100
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600}
_INTERRUPTED = "it was interrupted"
_CHILDREN = "The program starts processes: what they do was neither put into other orders nor compared."
# Modules that are not imported again, because other modules hold references to their parts.
_STAYS = ("flambeau", "torch", *sys.stdlib_module_names)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "explore",
        help=summary,
        description="Run a program written for torch.cuda once, record its command graph, put the graph into other "
        "legal orders, and run the program again in each that can give another result. What it prints, raises and "
        "exits with is compared.",
        epilog="--schedules, --time and --policy may also follow the program. The exit status is the program's own if "
        "all orders agree, no race was found and it raised nothing, 130 after Ctrl-C, 3 otherwise.",
    )
    parser.add_argument(
        "--schedules", metavar="N", type=int, help=f"number of orders to explore (default: {_SCHEDULES})"
    )
    parser.add_argument(
        "--time",
        metavar="T",
        type=_seconds,
        help="time limit: 60s, 5m, 1h; without --schedules it is the only limit",
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        action="append",
        help=f"{', '.join(POLICIES)}; may be repeated (default: all)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="first seed of each policy (default: 0)"
    )
    parser.add_argument(
        "--devices", metavar="N", type=int, default=configuration.DEVICES, help="number of virtual GPUs"
    )
    parser.add_argument(
        "--profile", metavar="NAME", default=configuration.PROFILE, help="model of the virtual GPUs"
    )
    add_computation_options(parser)
    add_outputs(parser)
    add_fixes(parser)
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Explore the program with these options, and print the report. Returns the exit status."""
    if not options.module and (why := why_not_readable(Path(options.program))):
        print(f"flambeau explore: can't open file {options.program!r}: {why}", file=sys.stderr)
        return 2
    if why := why_no_outputs(options):
        print(f"flambeau explore: {why}", file=sys.stderr)
        return 2
    _take_last(options)
    export_computation_options(options)
    if options.schedules is None and options.time is None:
        options.schedules = _SCHEDULES
    import_hook.install()
    processes = processes_so_far()
    with Stopping(signal.SIGINT, signal.SIGTERM) as stopping:
        watch = _Callbacks(Progress(sys.stderr, options.schedules, options.time))
        try:
            _check_devices(options)
            explore(
                partial(_run_and_capture, options, stopping),
                options.schedules,
                options.policy or POLICIES,
                seed=options.seed,
                devices=options.devices,
                profile=options.profile,
                seconds=options.time,
                replay=partial(_command, options),
                watch=watch,
            )
        except ValueError as error:
            print(f"flambeau explore: {error}", file=sys.stderr)
            return 2
        except (KeyboardInterrupt, Terminated) as error:
            if watch.found is None:
                sys.stderr.write(traceback_of(False, type(error), error, error.__traceback__))
                return stopping.status if stopping.received else INTERRUPTED
            watch.found.ended = _INTERRUPTED
        watch.progress.clear()
        found = watch.found
        assert found is not None
        children = processes_so_far() > processes
        status = _status(found, stopping)
        document = exploration_document(found, status)
        written, failed = write_outputs(options, document)
        write_exploration(found, sys.stdout, [_CHILDREN] if children else [], written)
        if options.apply_fixes:
            write_fixes(options, document, options.program)
        return status or failed


class _Callbacks:
    """The callbacks of an exploration: they show its progress, and the first race and failure."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.found: Exploration | None = None
        self._shown: set[type] = set()

    def __call__(self, found: Exploration, failure: Failure | None) -> None:
        self.found = found
        for first in (failure or next(iter(found.failures), None), next(iter(found.races), None)):
            if first is not None and type(first) not in self._shown:
                self._shown.add(type(first))
                self.progress.clear()
                write_first(found, first, sys.stderr)
        self.progress.update(found)


def _check_devices(options: argparse.Namespace) -> None:
    """Raise ValueError if there would be no device, for example because CUDA_VISIBLE_DEVICES hides all."""
    if options.devices < 1:
        raise ValueError(f"--devices must be at least 1, got {options.devices}")
    with system.virtual(options.devices, options.profile):
        try:
            system.init()
        except RaceError:
            raise
        except RuntimeError as error:
            raise ValueError(str(error)) from None


def _status(found: Exploration, stopping: Stopping) -> int:
    if stopping.received:
        return stopping.status
    if found.ended == _INTERRUPTED:  # the program interrupted itself
        return INTERRUPTED
    if not found.ok:
        return RACE_STATUS
    status: int = found.expected.value[1]
    return status


def _seconds(text: str) -> float:
    """Return the seconds of a duration that `--time` accepts."""
    match = _TIME.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 60s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _take_last(options: argparse.Namespace) -> None:
    """Move options of this command from the end of the program's arguments to the command, unless given before."""
    takes_policy = options.policy is None
    while True:
        if options.schedules is None and (count := take_last(options, ["--schedules"], str.isdecimal)):
            options.schedules = int(count)
        elif options.time is None and (text := take_last(options, ["--time"], _TIME.fullmatch)):
            options.time = _seconds(text)
        elif takes_policy and (policy := take_last(options, ["--policy"], is_policy)):
            options.policy = [policy, *(options.policy or ())]
        else:
            return


def _run_and_capture(options: argparse.Namespace, stopping: Stopping) -> tuple[str, int]:
    """Run the program as if for the first time. Returns its output and its exit status.

    A stop signal ends the run even if the program handles it, because an interrupted run has no outcome.
    """
    modules, environment, arguments = dict(sys.modules), dict(os.environ), sys.argv
    paths, folder = list(sys.path), os.getcwd()
    printed = io.BytesIO()
    # with the interface of sys.stdout
    text = io.TextIOWrapper(printed, "utf-8", newline="\n", write_through=True)
    status = 0
    try:
        with redirect_stdout(text):
            execute(options.program, list(options.arguments), options.module)
    except SystemExit as exit:
        status = exit_status(exit.code)
    finally:
        _forget(set(sys.modules) - set(modules), options.program.partition(".")[0] if options.module else "")
        sys.modules["__main__"] = modules["__main__"]
        sys.path[:], sys.argv = paths, arguments
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        stopping.check()
    text.flush()
    return printed.getvalue().decode("utf-8", "backslashreplace"), status


def _forget(names: set[str], program: str) -> None:
    """Make the next run import these modules again: the program's modules, and installed packages that use torch.

    Other installed packages stay: what is compiled cannot be loaded twice. So it is with those of torch's users
    that have compiled parts. `program`: the package that is run, installed or not.
    """
    packages: dict[str, list[str]] = {}
    for name in names:
        packages.setdefault(name.partition(".")[0], []).append(name)
    for package, parts in packages.items():
        modules = [sys.modules[name] for name in parts]
        stays = package in _STAYS or any(map(_is_compiled, modules))
        if not stays and (
            package == program or not all(map(_is_installed, modules)) or any(map(_uses_torch, modules))
        ):
            for name in parts:
                del sys.modules[name]


def _is_compiled(module: ModuleType) -> bool:
    return isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return file.startswith((*site.getsitepackages(), site.getusersitepackages()))


def _uses_torch(module: ModuleType) -> bool:
    """Return True if a module may hold tensors of a closed machine."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType | type | FunctionType):
            origin = value.__name__ if isinstance(value, ModuleType) else value.__module__
            if str(origin).partition(".")[0] in ("flambeau", "torch"):
                return True
    return False


def _command(options: argparse.Namespace, schedule: str) -> str:
    """Return the line that repeats a schedule."""
    line = ["flambeau", "run", "--devices", str(options.devices), "--profile", options.profile]
    for option in ("float32_precision", "compile"):
        if value := getattr(options, option):
            line += [f"--{option.replace('_', '-')}", value]
    line += ["--schedule", schedule, *(["-m"] if options.module else []), options.program, *options.arguments]
    return shlex.join(line)
