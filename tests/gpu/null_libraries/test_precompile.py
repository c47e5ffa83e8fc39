"""Kernels that are compiled over null GPUs are those that a real one asks for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest

if not (find_spec("cuda") and find_spec("nvidia") and shutil.which("gcc")):
    pytest.skip("NVRTC or gcc is not installed", allow_module_level=True)

import null_gpu
import precompile

from flambeau.core.device import device
from flambeau.core.dtype import float32
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.driver.protocol import Expression, Launch
from flambeau.ops.op import table

PROGRAM = "import flambeau as torch; x = torch.tensor([4.0, 9.0]).cuda(); print((x + x).tolist())"


def test_a_kernel_compiled_without_a_gpu_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's own look-up, in a folder that the archive was unpacked into. The CPU's answer came back."""
    null, kernels, unpacked = (tmp_path / name for name in ("null", "kernels", "unpacked"))
    null.mkdir()
    null_gpu.build(null)
    (installed,) = [
        folder for folder in map(Path, sys.path) if any(folder.glob("nvidia/*/lib/libnvrtc.so.*"))
    ]
    made = null_gpu.environment(null, installed, {"FLAMBEAU_KERNEL_CACHE": str(kernels)})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=made, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[8.0, 18.0]\n", done.stderr
    (found,) = precompile.used_since(kernels, 0)
    precompile.pack([found], tmp_path / "kernels.tar.xz")
    with tarfile.open(tmp_path / "kernels.tar.xz") as packed:
        for member in filter(tarfile.TarInfo.isfile, packed):  # `extractall` asks for a filter, or knows none
            (unpacked / member.name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / member.name).write_bytes(packed.extractfile(member).read())

    x, op = Meta.contiguous_of((2,), float32, device("cuda", 0)), table["add"]
    form, asked = op.kernel.cuda, op.rule((x, x), (float32,))
    assert isinstance(form, Expression)
    launch = Launch(op.kernel, asked.outputs, asked.inputs, asked.params)
    compiler = Compiler("sm_90a", unpacked)
    monkeypatch.setattr(compiler, "_compile", lambda text: pytest.fail("it was compiled anew"))
    _, source = pointwise.program(launch, form).name_and_source(launch)
    assert b"add_float32" in compiler.cubin(source)
