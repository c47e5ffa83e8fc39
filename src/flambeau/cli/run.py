"""`flambeau run`: run a torch program, unmodified, and report the work of its devices."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import linecache
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from zipfile import is_zipfile

from flambeau.cli import import_hook
from flambeau.cli.environment import add_machine_options, export_options, why_no_machine, why_not_readable
from flambeau.cli.output.console import PIPE_STATUS, is_lost
from flambeau.cli.output.run_report import write_screen
from flambeau.cli.output_files import (
    add_fixes,
    add_outputs,
    why_no_outputs,
    write_files,
    write_fixes,
    write_outputs,
)
from flambeau.cli.signals import Stopping, Terminated
from flambeau.cli.tracebacks import FULL, traceback_of
from flambeau.cli.trailing_options import take_last
from flambeau.core.errors import NotSupportedError, RaceError
from flambeau.observe import handovers
from flambeau.report.child_reports import ChildReports
from flambeau.report.document import Document, has_failed, run_document
from flambeau.report.recorder import ProcessRecorder
from flambeau.runtime import system
from flambeau.runtime.devices import blas_threads, configuration

RACE_STATUS, INTERRUPTED = 3, 130
_BLAS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_DEFAULTS = {"FLAMBEAU_VIRTUAL_DEVICES": "2", "FLAMBEAU_VIRTUAL_PROFILE": "a100-40g"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "run",
        help=summary,
        description="Run a program written for torch.cuda, unmodified: `import torch` imports Flambeau. "
        "Without a GPU and without options it gets 2 virtual GPUs (a100-40g), with race detection.",
        epilog="The exit status is the program's own, or 3 whenever --races error found a race.",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="write the timeline: a .html page, or .json for Perfetto; may be repeated",
    )
    parser.add_argument("-c", dest="is_code", action="store_true", help="PROGRAM is Python code")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="write the timeline as an SVG picture")
    add_outputs(parser)
    add_options(parser)
    parser.set_defaults(do=run)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `flambeau run` with these arguments."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_parser(commands, "")
    options: argparse.Namespace = commands.choices["run"].parse_args(arguments)
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of each command that runs a program: its machine, its reports, and the program."""
    add_machine_options(parser)
    add_fixes(parser)
    parser.add_argument("--quiet", action="store_true", help="print no report")
    add_full_traceback(parser)
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a script, - for stdin, or with -m a module")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )


def add_full_traceback(parser: argparse.ArgumentParser) -> None:
    """Add `--full-traceback`."""
    parser.add_argument(
        "--full-traceback", action="store_true", help="show Flambeau's own frames in tracebacks"
    )


def run(options: argparse.Namespace) -> int:
    """Run the program with these options. Returns the exit status."""
    code = _code_of(options)
    if code is None and not options.module and (why := why_not_readable(Path(options.program))):
        _say(options, f"can't open file {options.program!r}: {why}")
        return 2
    if why := why_no_outputs(options, *options.trace, options.picture):
        _say(options, why)
        return 2
    if options.schedule is None:  # `flambeau run program.py --schedule replay:TOKEN`
        options.schedule = take_last(options, ["--schedule"], lambda text: text.startswith("replay:"))
    if why := why_no_machine(options):
        _say(options, why)
        return 2
    _set_environment(options)
    import_hook.install()
    _write_whole_lines()
    recorder = ProcessRecorder(timeline=bool(options.trace or options.picture))
    system.watch(recorder)
    children, here = ChildReports(), os.getpid()
    try:
        children.open()
        _watch()
        status = _run_program(options, recorder, code)
        if os.getpid() != here:  # in a fork of the program, whose parent reports
            return status
        document = run_document(recorder, children.read(), status)
    finally:
        handovers.unwatch_process()
        if os.getpid() == here:
            children.close()
    if has_failed(document):
        document["exit_status"] = RACE_STATUS
    return _write_reports(options, recorder, document)


def _watch() -> None:
    """Begin to record thread synchronization before the program uses a device, if races are detected."""
    with suppress(ValueError):
        if configuration.from_environment().races != "off":
            handovers.watch_process()


def _code_of(options: argparse.Namespace) -> str | None:
    """Return the program's text if the command line or stdin has it; None if it is a file or a module."""
    if getattr(options, "is_code", False):
        return str(options.program)
    return sys.stdin.read() if options.program == "-" and not options.module else None


def _run_program(options: argparse.Namespace, recorder: ProcessRecorder, code: str | None) -> int:
    """Run the program to its end and close its machines. Returns the exit status that the program determines.

    SIGTERM ends it as `sys.exit` does, so that its report is written; a launcher ends its ranks immediately.
    """
    outer, folder = sys.modules["__main__"], os.getcwd()
    program = partial(execute, options.program, options.arguments, options.module)
    if code is not None:
        program = partial(execute_code, code, "-" if options.program == "-" else "-c", options.arguments)
    is_rank = "TORCHELASTIC_RUN_ID" in os.environ
    try:
        with Stopping(*([] if is_rank else [signal.SIGTERM])) as stopping:
            status, reported = _outcome_of(program, options.full_traceback)
            _end_program(outer)
            for problem in system.close_all():
                if _first_line(problem) != reported:  # a failed device reports its error at each wait
                    _say(options, f"the program ended without waiting for this: {problem}")
                status = status or 1
        if not status:  # otherwise it may have ended early because of the error
            status = _status_of_replay(options, recorder)
    except KeyboardInterrupt:
        _say(options, "interrupted while the program's last work was waited for")
        status = INTERRUPTED
        system.close_all()
    except Terminated:
        system.close_all()
    with suppress(OSError):  # the program may have changed the directory and removed the folder
        os.chdir(folder)
    return stopping.status if stopping.received else status


def _write_whole_lines() -> None:
    """Flush standard output line by line, because ranks share a console."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True, write_through=False)


def processes_so_far() -> int:
    """Return the number of processes that multiprocessing has created here, read from its counter "count(3)"."""
    module = sys.modules.get("multiprocessing.process")
    return 0 if module is None else int(repr(module._process_counter)[6:-1]) - 1


def _say(options: argparse.Namespace, text: str) -> None:
    print(f"flambeau {options.command}: {text}", file=sys.stderr)


def _set_environment(options: argparse.Namespace) -> None:
    """Set the environment variables of the program and its children."""
    export_options(options)
    if options.full_traceback:
        os.environ[FULL] = "1"  # for child processes
    with suppress(ValueError):  # a malformed variable: the program reports it on first use
        driver = configuration.from_environment().driver
        if driver == "none":
            os.environ.update(_DEFAULTS)
        if driver != "cuda" and not os.environ.get("FLAMBEAU_RACES"):
            os.environ["FLAMBEAU_RACES"] = "warn"
        if driver != "cuda":
            _cap_blas()


def _cap_blas() -> None:
    """Limit BLAS to one thread, unless the environment or `torch.set_num_threads` says otherwise.

    Virtual GPUs multiply many small matrices, where BLAS's threads cost more than they bring, on a busy machine
    ten times as much; and how many there are shows in the last bits of a product, so that another machine's would
    differ. NumPy is imported already, so its library's thread count is set by a call. SciPy, imported later, and
    child processes read it from the environment.
    """
    if any(os.environ.get(name) for name in _BLAS):
        return
    os.environ.update(dict.fromkeys(_BLAS, "1"))
    with suppress(NotSupportedError):  # a BLAS library other than OpenBLAS uses its own default
        blas_threads.limit(1)


def execute(program: str, arguments: list[str], is_module: bool) -> None:
    """Run a script or module as `python` would, in this process."""
    sys.argv = [program, *arguments]
    folder = os.getcwd() if is_module else str(Path(program).resolve().parent)
    if sys.flags.safe_path:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder  # replaces the folder of the `flambeau` command
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(program)  # so that its lines are found after a chdir
    if is_zipfile(path):
        runpy.run_path(path, run_name="__main__")
        return
    _new_main().__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), sys.modules["__main__"].__dict__)


def execute_code(code: str, name: str, arguments: list[str]) -> None:
    """Run code as `python -c` or `python -` would, in this process. `name` is "-c" or "-"."""
    sys.argv = [name, *arguments]
    if sys.flags.safe_path:
        sys.path.insert(0, "")
    else:
        sys.path[0] = ""
    file = "<stdin>" if name == "-" else "<string>"
    linecache.cache[file] = (
        len(code),
        None,
        code.splitlines(keepends=True),
        file,
    )  # for tracebacks and reports
    module = _new_main()
    if name == "-":
        module.__file__ = file  # as the interpreter does
    exec(compile(code, file, "exec", dont_inherit=True), module.__dict__)


def _new_main() -> ModuleType:
    """Return a new `__main__` module, which spawned children import again and pickles refer to."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    return module


def _outcome_of(program: Callable[[], None], full_traceback: bool) -> tuple[int, str]:
    """Run it as the interpreter would: its exit status, its traceback on stderr; and the first line of its error."""
    before, sys.excepthook = sys.excepthook, partial(_show, full_traceback)  # the program may set another
    of_threads, threading.excepthook = threading.excepthook, partial(_show_of_thread, full_traceback)
    try:
        program()
    except SystemExit as exit:
        return exit_status(exit.code), ""
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and is_lost(sys.stdout):  # such as `flambeau run p.py | head`
            return PIPE_STATUS, ""
        sys.last_value = error  # as the interpreter does: exit functions see that the program failed
        sys.excepthook(type(error), error, error.__traceback__)
        error.__traceback__ = None  # the traceback's frames hold tensors
        return _status_of_error(error), _first_line(error)
    finally:
        sys.excepthook, threading.excepthook = before, of_threads
    return 0, ""


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def exit_status(code: object) -> int:
    """Return the exit status of `sys.exit(code)`. A text is printed to stderr."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _status_of_error(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return RACE_STATUS if isinstance(error, RaceError) else 1


def _status_of_replay(options: argparse.Namespace, recorder: ProcessRecorder) -> int:
    """Return 1, with a message on stderr, if the program ended before the replayed token did; otherwise 0."""
    problems = [machine.unplayed for machine in recorder.machines if machine.unplayed]
    for problem in problems:
        _say(options, problem)
    return 1 if problems else 0


def _show(full: bool, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error's traceback, and record it for a launcher that started this process as a rank."""
    text = traceback_of(full, kind, error, trace)
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        import_module("flambeau.distributed.excepthook").note(error, text)
    sys.stderr.write(text)  # one write call, because other ranks write to the same console


def _show_of_thread(full: bool, reported: threading.ExceptHookArgs) -> None:
    """Print the traceback of an error that ended a thread of the program."""
    if reported.exc_type is not SystemExit and reported.exc_value is not None:
        name = reported.thread.name if reported.thread is not None else threading.get_ident()
        text = traceback_of(full, reported.exc_type, reported.exc_value, reported.exc_traceback)
        sys.stderr.write(f"Exception in thread {name}:\n{text}")


def _end_program(outer: ModuleType) -> None:
    """End the program as the interpreter does: threads, exit functions, then module names.

    Tensors still alive leak.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit.unregister(system.close_quietly)  # `run` closes the machines itself and reports errors
    atexit._run_exitfuncs()
    vars(sys).pop("last_value", None)
    ours = sys.modules["__main__"]
    for name in ("__main__", "__mp_main__"):  # the second name exists if multiprocessing is imported
        if sys.modules.get(name) is ours:
            sys.modules[name] = outer
    del ours
    gc.collect()
    with suppress(OSError, ValueError, AttributeError):  # stdout or stderr is closed or None
        sys.stdout.flush()


def _write_reports(options: argparse.Namespace, recorder: ProcessRecorder, document: Document) -> int:
    """Write the requested files. Returns the exit status, which is an error if one could not be written."""
    drawn, failed = _draw_timelines(options, recorder) if options.trace or options.picture else ([], 0)
    document["exit_status"] = document["exit_status"] or failed
    written, failed = write_outputs(options, document)
    status: int = document["exit_status"] or failed
    if not options.quiet:
        write_screen(document, sys.stderr, [*drawn, *written], failed=status != 0)
    if options.apply_fixes:
        write_fixes(options, document, options.program)
    return status


def _draw_timelines(options: argparse.Namespace, recorder: ProcessRecorder) -> tuple[list[Path], int]:
    """Draw the requested timelines. Returns the files written, and 1 if one could not be written."""
    timelines = import_module("flambeau.cli.output.timelines")  # few runs need it
    return write_files(
        options,
        [
            *[
                (file, partial(timelines.write_trace, recorder, program=options.program))
                for file in options.trace
            ],
            (options.picture, partial(timelines.write_picture, recorder)),
        ],
    )
