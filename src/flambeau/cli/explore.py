"""`flambeau explore`: run a torch program in every order of its commands that can make a difference."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import site
import sys
from contextlib import redirect_stdout
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FunctionType, ModuleType

from flambeau.cli import finder
from flambeau.cli.environment import why_not_readable
from flambeau.cli.run import INTERRUPTED, RACE_STATUS, execute, exit_status, processes_so_far, traceback_of
from flambeau.cli.trailing import take_last
from flambeau.runtime import settings
from flambeau.testing.explore import POLICIES, explore, is_policy

_SCHEDULES = 100
# Modules that are not imported again, for their parts know each other.
_STAYS = ("flambeau", "torch", *sys.stdlib_module_names)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explore",
        help="run a torch program in many legal orders and compare what it prints",
        description="Run a program written for torch.cuda once, record its command graph, put the graph into other "
        "legal orders, and run the program again in each that can give another result. What it prints, raises and "
        "exits with is compared.",
        epilog="--schedules and --policy may stand last, too. The exit status is the program's own if all orders "
        "agree, no race was found and it raised nothing, 3 otherwise.",
    )
    parser.add_argument(
        "--schedules", metavar="N", type=int, help=f"how many orders to look at ({_SCHEDULES})"
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        action="append",
        help=f"{', '.join(POLICIES)}; may be given again (all of them)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="the first seed of each policy (0)")
    parser.add_argument(
        "--devices", metavar="N", type=int, default=settings.DEVICES, help="how many virtual GPUs"
    )
    parser.add_argument("--profile", metavar="NAME", default=settings.PROFILE, help="which GPU they model")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Explore the program as `options` say, print the report; the exit status."""
    if not options.module and (why := why_not_readable(Path(options.program))):
        print(f"flambeau explore: can't open file {options.program!r}: {why}", file=sys.stderr)
        return 2
    _take_last(options)
    finder.install()
    processes = processes_so_far()
    try:
        found = explore(
            partial(_printed, options),
            _SCHEDULES if options.schedules is None else options.schedules,
            options.policy or POLICIES,
            seed=options.seed,
            devices=options.devices,
            profile=options.profile,
            replay=partial(_command, options),
        )
    except ValueError as error:
        print(f"flambeau explore: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        sys.stderr.write(traceback_of(False, KeyboardInterrupt, error, error.__traceback__))
        return INTERRUPTED
    print(found)
    if processes_so_far() > processes:
        print("The program starts processes: what they do was neither put into other orders nor compared.")
    if not found.ok:
        return RACE_STATUS
    status: int = found.expected.value[1]
    return status


def _take_last(options: argparse.Namespace) -> None:
    """Take this command's own options from the end of the program's arguments, unless they stand before it."""
    takes_policy = options.policy is None
    while True:
        if options.schedules is None and (count := take_last(options, ["--schedules"], str.isdecimal)):
            options.schedules = int(count)
        elif takes_policy and (policy := take_last(options, ["--policy"], is_policy)):
            options.policy = [policy, *(options.policy or ())]
        else:
            return


def _printed(options: argparse.Namespace) -> tuple[str, int]:
    """Run the program as if it were the first time: what it prints and its exit status."""
    modules, environment, arguments = dict(sys.modules), dict(os.environ), sys.argv
    paths, folder = list(sys.path), os.getcwd()
    printed = io.BytesIO()
    text = io.TextIOWrapper(printed, "utf-8", newline="\n", write_through=True)  # as programs know sys.stdout
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
    text.flush()
    return printed.getvalue().decode("utf-8", "backslashreplace"), status


def _forget(names: set[str], program: str) -> None:
    """Let the next run import these modules again: the program's own, and installed packages that use torch.

    Other installed packages stay: what is compiled cannot be loaded twice. So it is with those of torch's users that
    have compiled parts. `program`: the package that is run, installed or not.
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
    """Whether it may hold tensors of a machine that is gone."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType | type | FunctionType):
            origin = value.__name__ if isinstance(value, ModuleType) else value.__module__
            if str(origin).partition(".")[0] in ("flambeau", "torch"):
                return True
    return False


def _command(options: argparse.Namespace, schedule: str) -> str:
    """The line that repeats a schedule."""
    line = ["flambeau", "run", "--devices", str(options.devices), "--profile", options.profile]
    line += ["--schedule", schedule, *(["-m"] if options.module else []), options.program, *options.arguments]
    return shlex.join(line)
