"""Running a bench where NVIDIA's libraries do nothing: `libraries()`, made of tests/gpu/null_*.c by gcc.

All that Python does for a call is there then, down to cuda-bindings and ctypes, and nothing else: no GPU is needed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "tests" / "gpu"
LIBRARIES = {
    "null_cuda.c": "libcuda.so.1", "null_nccl.c": "libnccl.so.2", "null_cudnn.c": "libcudnn.so.9",
    "null_cublaslt.c": "libcublasLt.so.13",
}  # fmt: skip
_WORK = 1 << 20  # bytes that a convolution works with


def libraries() -> None:
    """Return where they are the ones that are found; else run this program again, there, and exit.

    Kernels are never compiled.
    """
    folder = os.environ.get("NULL_CUDA")
    if folder is None:
        _run_again()
    for name in LIBRARIES.values():  # what is loaded already is taken, whatever the machine has
        ctypes.CDLL(name)
    from flambeau.driver.cuda.device.compiler import Compiler

    Compiler.cubin = lambda self, source: b"x"  # type: ignore[method-assign,assignment]


def _run_again() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for source, name in LIBRARIES.items():
            flags = ["-shared", "-fPIC", "-w", "-O2", "-ldl", "-lpthread", f"-Wl,-soname,{name}"]
            subprocess.run(["gcc", "-o", Path(folder, name), SOURCES / source, *flags], check=True)
        settings = {
            "NULL_CUDA": folder, "NULL_CUDA_MOVES": "65536", "NULL_NCCL_ALONE": "1", "NULL_CUDNN_WORK": str(_WORK),
            "LD_LIBRARY_PATH": folder, "FLAMBEAU_DRIVER": "cuda", "FLAMBEAU_KERNEL_CACHE": folder,
        }  # fmt: skip
        sys.exit(subprocess.run([sys.executable, *sys.argv], env={**os.environ, **settings}).returncode)
