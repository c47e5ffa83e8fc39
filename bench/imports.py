"""What `import flambeau` costs over `import numpy`: fresh processes in turn, the best and the median of each.

`python bench/imports.py [runs]`. The promise is a tenth of a second at most. Modules are compiled beforehand, as
an installer does it, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from importlib.util import find_spec

PROGRAM = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"


def milliseconds(module: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e3


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    for module in ("numpy", "ml_dtypes", "flambeau"):
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            compileall.compile_dir(spec.submodule_search_locations[0], quiet=1)
    taken: dict[str, list[float]] = {"numpy": [], "flambeau": []}
    for _ in range(runs):
        for module, times in taken.items():
            times.append(milliseconds(module))
    for module, times in taken.items():
        print(f"import {module:9} best {min(times):6.1f} ms, median {statistics.median(times):6.1f} ms")
    best = min(taken["flambeau"]) - min(taken["numpy"])
    median = statistics.median(taken["flambeau"]) - statistics.median(taken["numpy"])
    print(f"flambeau over numpy: {best:.1f} ms at best, {median:.1f} ms between medians")


if __name__ == "__main__":
    main()
