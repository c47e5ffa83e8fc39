"""`flambeau doctor` and `flambeau.doctor()`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_kit import environment
from warm_start import run_module

import flambeau
from flambeau.driver.cuda import probe
from flambeau.observe.faults import Fault, FaultDriver
from flambeau.runtime import system
from flambeau.runtime.devices import configuration
from flambeau.runtime.devices import doctor as room


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_module("flambeau", "doctor", *arguments, env=environment(**variables))


def test_the_command_says_what_is_there() -> None:
    done = call(FLAMBEAU_VIRTUAL_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0")
    assert done.returncode == 0, done.stderr
    for text in (
        "Devices: 2 (virtual a100-40g); environment: ",
        "CUDA_VISIBLE_DEVICES='2,0'",
        "cuda:0: NVIDIA A100-SXM4-40GB, capability 8.0 (the machine's device 2)",
        "Peers cuda:0 and cuda:1 reach each other; copies: direct",
        "TF32: matrix products on, cuDNN on",
        "FFT plans: 0 of 4096",
    ):
        assert text in done.stdout
    assert f"numpy {__import__('numpy').__version__}" in done.stdout


def test_json_and_no_devices() -> None:
    done = call("--json", FLAMBEAU_VIRTUAL_DEVICES="0")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["visible"] == 0 and found["devices"] == []
    assert not found["initialized"] and found["driver"] == "virtual"


@pytest.mark.parametrize(
    ("variables", "words", "status"),
    [
        ({}, "`flambeau run program.py` would open 2 virtual GPUs (a100-40g)", 0),
        ({"FLAMBEAU_VIRTUAL_DEVICES": "0"}, "FLAMBEAU_VIRTUAL_DEVICES=0 means that CUDA is not available", 0),
        (
            {"FLAMBEAU_VIRTUAL_DEVICES": "2", "CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES hides all devices",
            0,
        ),
        ({"FLAMBEAU_DRIVER": "cuda"}, "FLAMBEAU_DRIVER=cuda requires real GPUs", 1),
    ],
)
@pytest.mark.skipif(probe.why_not() is None, reason="this machine has a GPU")
def test_a_machine_without_a_device_gets_advice(variables: dict[str, str], words: str, status: int) -> None:
    done = call(**variables)
    assert words in done.stdout, done.stdout + done.stderr
    assert done.returncode == status


@pytest.mark.skipif(probe.why_not() is None, reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("hidden", "opened"),
    [
        ("0,0", "no GPU; CUDA_VISIBLE_DEVICES hides all: unset it"),
        ("1", "1 virtual GPU (a100-40g)"),
        ("7", "no GPU; CUDA_VISIBLE_DEVICES hides all: unset it"),
    ],
)
def test_advice_counts_visible_devices(hidden: str, opened: str) -> None:
    done = call(CUDA_VISIBLE_DEVICES=hidden)
    assert done.returncode == 0
    assert f"`flambeau run program.py` would open {opened}" in done.stdout
    assert ("CUDA_VISIBLE_DEVICES hides all" in done.stdout) == opened.startswith("no GPU")


TRY_ADVICE = r"""
import itertools, os, re, sys
import flambeau as torch

VARIABLES = {
    "FLAMBEAU_DRIVER": (None, "auto", "cuda", "virtual"),
    "FLAMBEAU_VIRTUAL_DEVICES": (None, "0", "2"),
    "CUDA_VISIBLE_DEVICES": (None, "", "-1", "7", "0,0"),
}

def initialize():
    # In a child, for a process initializes once.
    read, write = os.pipe()
    if not os.fork():
        try:
            torch.cuda.init()
            message = ""
        except RuntimeError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    os.wait()
    return message

for values in itertools.product(*VARIABLES.values()):
    for name, value in zip(VARIABLES, values):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    message = initialize()
    for name, value in re.findall(r"(FLAMBEAU_\w+)=(\w+)(?=[ ,.])", message):
        os.environ[name] = value
    for name in re.findall(r"[Uu]nset (\w+)", message):
        os.environ.pop(name, None)
    if message and initialize():
        sys.exit(f"{values}: {message}\nafterwards: {initialize()}")
"""


@pytest.mark.skipif(probe.why_not() is None or not hasattr(os, "fork"), reason="a GPU, or no fork")
def test_the_advice_of_each_error_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRY_ADVICE], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("0", "Kernel cache: off"),
        ("{folder}", "Kernel cache: 2 kernels, 3.00 KiB, in {folder}"),
        ("{folder}/new/one", "Kernel cache: 0 kernels, 0 bytes, in {folder}/new/one"),
        ("{folder}/a.cubin/x", "Kernel cache: {folder}/a.cubin/x cannot be written"),
    ],
)
def test_the_kernel_cache_has_a_line(tmp_path: Path, setting: str, text: str) -> None:
    for name, nbytes in (("a.cubin", 1024), ("b.cubin", 2048), ("other", 10)):
        (tmp_path / name).write_bytes(bytes(nbytes))
    done = call(FLAMBEAU_VIRTUAL_DEVICES="1", FLAMBEAU_KERNEL_CACHE=setting.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr
    assert text.format(folder=tmp_path) in done.stdout


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("off", "computed with NumPy; FLAMBEAU_NATIVE=off"),
        ("{folder}", "computed with NumPy; {folder} has no library"),
    ],
)
def test_native_kernels_have_a_line(tmp_path: Path, setting: str, text: str) -> None:
    done = call(FLAMBEAU_VIRTUAL_DEVICES="1", FLAMBEAU_NATIVE=setting.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"CPU and virtual GPUs: {text.format(folder=tmp_path)}" in done.stdout


def test_an_unknown_variable_gets_the_nearest_name() -> None:
    done = call(FLAMBEAU_VIRTUAL_DEVICES="1", FLAMBEAU_VIRTUAL_DEVICE="3", FLAMBEAU_Q1="")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "flambeau: Flambeau has no variable FLAMBEAU_Q1",
        "flambeau: Flambeau has no variable FLAMBEAU_VIRTUAL_DEVICE; did you mean FLAMBEAU_VIRTUAL_DEVICES?",
    ]


@pytest.mark.parametrize("options", [[], ["-W", "error"]])
def test_a_program_without_a_command_is_warned_of_unknown_variables(options: list[str]) -> None:
    text = "import flambeau as torch; torch.cuda.is_available(); print(torch.cuda.device_count())"
    environment = os.environ | {"FLAMBEAU_RACE": "error", "FLAMBEAU_VIRTUAL_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, *options, "-c", text], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "1\n"
    assert done.stderr.count("Flambeau has no variable FLAMBEAU_RACE; did you mean FLAMBEAU_RACES?") == 1


def test_every_variable_that_the_sources_name_is_known() -> None:
    sources = Path(flambeau.__file__).parent.rglob("*.py")
    named = {
        name for path in sources for name in re.findall(r"FLAMBEAU_[A-Z0-9_]*[A-Z0-9]", path.read_text())
    }
    assert named == {*configuration.VARIABLES}


def test_every_variable_that_the_tests_read_is_known() -> None:
    tests = Path(__file__).parents[1].rglob("*.py")
    reads = re.compile(r'(?:get|getenv)\("(FLAMBEAU_[A-Z0-9_]+)"')
    named = {name for path in tests for name in reads.findall(path.read_text())}
    assert "FLAMBEAU_HUNT_SEEDS" in named and named <= {*configuration.VARIABLES}


@pytest.mark.parametrize(
    ("name", "value"),
    [("FLAMBEAU_VIRTUAL_DEVICES", "x"), ("FLAMBEAU_DRIVER", "nope"), ("PYTORCH_ALLOC_CONF", "foo:1")],
)
def test_an_environment_that_means_nothing_is_told_in_a_line(name: str, value: str) -> None:
    done = call(**({"FLAMBEAU_VIRTUAL_DEVICES": "1"} | {name: value}))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"flambeau doctor: {name}={value!r}: ") and done.stderr.count("\n") == 1


def test_versions_of_the_driver_and_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver_version(number: Any) -> int:
        number._obj.value = 13010
        return 0

    def name(text: Any, length: int) -> int:
        text.value = b"590.44.01"
        return 0

    def missing(path: str) -> Any:
        raise OSError(path)

    libraries = {
        "libcuda.so.1": SimpleNamespace(cuDriverGetVersion=driver_version),
        "libnvidia-ml.so.1": SimpleNamespace(
            nvmlInit_v2=lambda: 0, nvmlShutdown=lambda: 0, nvmlSystemGetDriverVersion=name
        ),
    }
    with monkeypatch.context() as patch:
        patch.setattr(probe.ctypes, "CDLL", lambda path: libraries[path])
        assert probe.driver_versions() == ("590.44.01", "13.1")
        patch.setattr(probe.ctypes, "CDLL", missing)
        assert probe.driver_versions() == (None, None)
    monkeypatch.setattr(room, "driver_versions", lambda: ("590.44.01", "13.1"))
    monkeypatch.setattr(room, "cudnn_version", lambda: 91002)
    monkeypatch.setattr(room, "nccl_version", lambda: 22809)
    found = room.examine()["versions"]
    assert (found["cuDNN library"], found["NCCL library"]) == ("9.10.2", "2.28.9")
    assert (found["NVIDIA driver"], found["CUDA of the driver"]) == ("590.44.01", "13.1")


def test_it_initializes_nothing_and_then_says_who_did() -> None:
    with flambeau.virtual(devices=2):
        assert "CUDA: not initialized yet; this process may fork" in flambeau.doctor()
        assert not flambeau.cuda.is_initialized()
        flambeau.cuda.init()
        assert "test_doctor.py:" in flambeau.doctor()
        found = room.examine()
        assert found["initialized"] and found["process"] == os.getpid()
        assert [p["copies"] for p in found["peers"]] == ["not used yet"]


def test_memory_adds_up() -> None:
    with flambeau.virtual(devices=1):
        kept = flambeau.ones(1 << 20, device="cuda")
        gone = flambeau.ones(1 << 21, device="cuda")
        pinned = flambeau.ones(1 << 10).pin_memory()
        del gone
        flambeau.fft.fft(kept)
        (device,) = room.examine()["devices"]
        assert device["allocated"] == flambeau.cuda.memory_allocated()
        assert device["reserved"] == flambeau.cuda.memory_reserved() > device["allocated"]
        free, total = flambeau.cuda.mem_get_info()
        assert (device["total"], device["used"]) == (total, total - free)
        assert device["processes"] == {os.getpid(): total - free}
        assert device["plans"] == 1 and room.examine()["pinned_bytes"] >= pinned.nbytes
        text = flambeau.doctor()
        assert "4.0 MiB in tensors" in text or "4.00 MiB in tensors" in text
        assert f"process {os.getpid()} (this one)" in text


def test_it_finds_pairs_whose_copies_arrive_changed() -> None:
    with flambeau.virtual(devices=2):
        contexts = system.contexts()
        flambeau.ones(1, device="cuda:0").to("cuda:1")
        faulty = FaultDriver(contexts[0].driver, [Fault("copy", nth=1, corrupts=True)])
        for context in contexts:
            context.driver = context.backing = faulty
        with pytest.warns(RuntimeWarning, match="arrived changed"):
            text = flambeau.doctor(try_peers=True)
        assert "copies: corrupt, so through the host" in text


def test_flags_are_told() -> None:
    flambeau.backends.cudnn.allow_tf32 = False
    try:
        assert "TF32: matrix products on, cuDNN off" in flambeau.doctor()
    finally:
        flambeau.backends.cudnn.allow_tf32 = True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_told() -> None:
    source = (
        "import os, flambeau\n"
        "flambeau.virtual(devices=1); flambeau.cuda.init()\n"
        "pid = os.fork()\n"
        "if not pid: print(flambeau.doctor(), flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        env=environment(FLAMBEAU_VIRTUAL_DEVICES="1"),
    )
    assert "forked from one that had initialized it; start processes by 'spawn'" in done.stdout, done.stderr
