"""Time of `import flambeau` compared with `import numpy`, in fresh processes.

`python bench/imports.py [runs]`. The promise is a tenth of a second at most. Modules are compiled beforehand, as
an installer does it, whatever PYTHONDONTWRITEBYTECODE says. Processor time is printed next to wall-clock
time, because it can be compared where other programs run.
"""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from importlib.util import find_spec

PROGRAM = """
from time import perf_counter, process_time
clock, processor = perf_counter(), process_time()
import {0}
print(perf_counter() - clock, process_time() - processor)
"""


def milliseconds(module: str) -> tuple[float, ...]:
    """Return the milliseconds of wall-clock time and of processor time."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module)], capture_output=True, text=True, check=True
    )
    return tuple(float(seconds) * 1e3 for seconds in done.stdout.split())


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    for module in ("numpy", "flambeau"):
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            compileall.compile_dir(spec.submodule_search_locations[0], quiet=1)
    taken: dict[str, list[tuple[float, ...]]] = {"numpy": [], "flambeau": []}
    for _ in range(runs):
        for module, times in taken.items():
            times.append(milliseconds(module))
    for at, what in enumerate(("clock", "processor")):
        numpy, ours = ([times[at] for times in taken[module]] for module in taken)
        median = statistics.median
        for module, times in (("numpy", numpy), ("flambeau", ours)):
            print(f"{what:10} import {module:9} best {min(times):6.1f} ms, median {median(times):6.1f} ms")
        best, middle = min(ours) - min(numpy), median(ours) - median(numpy)
        print(f"{what:10} flambeau over numpy: {best:.1f} ms at best, {middle:.1f} ms between medians")


if __name__ == "__main__":
    main()
