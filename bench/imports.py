"""What `import flambeau` costs over `import numpy`: fresh processes in turn, the best and the median of each.

`python bench/imports.py [runs]`. The promise is a tenth of a second at most.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

PROGRAM = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"


def milliseconds(module: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e3


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    taken: dict[str, list[float]] = {"numpy": [], "flambeau": []}
    for _ in range(runs):
        for module, times in taken.items():
            times.append(milliseconds(module))
    for module, times in taken.items():
        print(f"import {module:9} best {min(times):6.1f} ms, median {statistics.median(times):6.1f} ms")
    over = min(taken["flambeau"]) - min(taken["numpy"])
    print(f"flambeau over numpy: {over:.1f} ms at best")


if __name__ == "__main__":
    main()
