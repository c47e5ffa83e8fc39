"""Compile the kernels that run_all.py asks a GPU for, on a machine without one: where GPUs are rented, minutes count.

    python tests/gpu/precompile.py [part ...] [--only PATTERN ...] [-n PROCESSES] [--archive kernels.tar.xz]

It needs gcc, pip and, for the part `oracle`, PyTorch. run_all.py runs over null GPUs (null_gpu.py) of the architecture,
with NVRTC in the version that the GPU's machine has: so the driver itself makes each key, and what is compiled already
is not compiled again. Ends with run_all.py's table, whose failures are what could not be driven to its end, and the
number and size of the kernels that this run asked for; `--archive` packs those. On the machine with the GPU:

    mkdir -p ~/.cache/flambeau/kernels && tar -xJf kernels.tar.xz -C ~/.cache/flambeau/kernels
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

import null_gpu  # noqa: E402

from flambeau.driver.cuda.device.kernel_cache import LIMIT  # noqa: E402

PARTS = ["contract", "operators", "layouts", "random", "tests", "oracle", "examples", "pair"]
TWO = {"examples"}
"""Parts that are driven with two null GPUs: the processes of two ranks would wait for each other."""


def nvrtc(folder: Path, version: str) -> Path:
    """NVRTC of this version, installed below `folder` by pip if it is not there yet."""
    there = folder / f"nvrtc-{version}"
    if not there.exists():
        fresh = Path(tempfile.mkdtemp(dir=folder))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(fresh)]
        subprocess.run([*command, f"nvidia-cuda-nvrtc=={version}"], check=True)
        fresh.rename(there)
    return there


def environment(folder: Path, version: str, architecture: str, kernels: Path) -> dict[str, str]:
    """Of processes over null GPUs that compile by NVRTC `version`. Raises RuntimeError where they take another."""
    compiler = nvrtc(folder, version)
    null = folder / "null"
    null.mkdir(exist_ok=True)
    null_gpu.build(null)
    more = {
        "FLAMBEAU_KERNEL_CACHE": str(kernels),
        "NULL_CUDA_ARCHITECTURE": architecture.removeprefix("sm_").rstrip("a"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    made = null_gpu.environment(null, compiler, more)
    ask = "from cuda.bindings import nvrtc; print(*nvrtc.nvrtcVersion()[1:], sep='.')"
    found = subprocess.run(
        [sys.executable, "-c", ask], env=made, text=True, stdout=subprocess.PIPE, check=True
    )
    if found.stdout.strip() != ".".join(version.split(".")[:2]):
        raise RuntimeError(f"NVRTC {version} was installed, but processes take {found.stdout.strip()}")
    return made


def drive(parts: list[str], asked: argparse.Namespace, made: dict[str, str], log: Path) -> str:
    """Run parts of run_all.py: those of one null GPU, the oracle with PyTorch's CPU build, those of two GPUs.

    Returns their lines of its table; all that they say goes to `log`.
    """
    groups = [
        ([part for part in parts if part not in {"oracle", *TWO}], {}),
        ([part for part in parts if part == "oracle"], {"PYTEST_ADDOPTS": "-p null_torch"}),
        ([part for part in parts if part in TWO], {"NULL_CUDA_DEVICES": "2"}),
    ]
    table = ""
    for chosen, more in groups:
        command = [sys.executable, str(HERE / "run_all.py"), *chosen, "-n", str(asked.processes)]
        command += ["--limit", str(asked.limit), "--only", *asked.only]
        if chosen:
            with log.open("a") as said:
                subprocess.run(command, env=made | more, check=False, stdout=said, stderr=subprocess.STDOUT)
            table += log.read_text().rpartition("\n\n")[2]
    return table


def used_since(kernels: Path, start: float) -> list[Path]:
    """The kernels that were asked for since then: the cache notes when each was used."""
    return sorted(path for path in kernels.glob("*.cubin") if path.stat().st_mtime >= start)


def pack(kernels: list[Path], archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=2) as packed:  # a tenth of the default's time
        for path in kernels:
            packed.add(path, path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a cache of CUDA kernels on a machine without a GPU.")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of run_all.py, of {', '.join(PARTS)}; else all"
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="operators, by their names"
    )
    parser.add_argument("-n", type=int, default=os.cpu_count(), dest="processes", metavar="PROCESSES")
    parser.add_argument("--architecture", default="sm_90a", help="of the GPU, sm_90a if not given")
    parser.add_argument("--compiler", default="13.0.88", help="the version of nvidia-cuda-nvrtc there")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="that a part may take")
    parser.add_argument(
        "--folder", type=Path, default=Path(cache, "flambeau", "precompiled"), help="to work in"
    )
    parser.add_argument("--archive", type=Path, help="a file to pack the kernels into, a .tar.xz")
    asked = parser.parse_args()
    kernels = asked.folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    made, start = environment(asked.folder, asked.compiler, asked.architecture, kernels), time.time()
    log = asked.folder / "log"
    log.write_text("")
    print(f"what is driven says all in {log}", flush=True)
    print(drive(asked.parts or PARTS, asked, made, log), end="")
    found = used_since(kernels, start)
    size = sum(path.stat().st_size for path in found)
    print(f"{len(found)} kernels, {size / 1e6:.1f} MB, {time.time() - start:.0f} s; in {kernels}")
    if size > LIMIT:
        print(f"more than a cache keeps, {LIMIT / 1e6:.0f} MB: those used longest ago are gone")
    if asked.archive:
        pack(found, asked.archive)
        print(f"{asked.archive}: {asked.archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
