"""SPEC A31, C01 to C03, D06 to D08 and the environment: where devices come from, what is refused."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core.device import device
from flambeau.driver.cuda import probe
from flambeau.driver.protocol import Kernel, Launch
from flambeau.runtime import system
from flambeau.runtime.devices import configuration
from flambeau.tensor.call import launch_sleep


@pytest.fixture(autouse=True)
def closed_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.delenv(name, raising=False)
    yield
    system.close_all()


# -- the environment asks for a machine ---------------------------------------------------------------------
def test_devices_and_profile_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "4")
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_PROFILE", "v100-32g")
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert torch.cuda.get_device_capability(3) == (7, 0)


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({}, 0),
        ({"FLAMBEAU_DRIVER": "auto"}, 0),
        ({"FLAMBEAU_DRIVER": "cuda"}, 0),
        ({"FLAMBEAU_DRIVER": "cuda", "FLAMBEAU_VIRTUAL_DEVICES": "3"}, 0),  # cuda never falls back
        ({"FLAMBEAU_DRIVER": "virtual"}, configuration.DEVICES),
        ({"FLAMBEAU_VIRTUAL_PROFILE": "h100"}, configuration.DEVICES),
        ({"FLAMBEAU_VIRTUAL_DEVICES": "0"}, 0),
        ({"FLAMBEAU_VIRTUAL_DEVICES": ""}, 0),
        ({"FLAMBEAU_VIRTUAL_DEVICES": " 3 "}, 3),
        ({"FLAMBEAU_DRIVER": "virtual", "FLAMBEAU_VIRTUAL_DEVICES": "1"}, 1),
        ({"FLAMBEAU_VIRTUAL_DEVICES": "2", "CUDA_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_which_machine_is_meant(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], devices: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert torch.cuda.device_count() == devices
    assert torch.cuda.is_available() is (devices > 0)
    assert not torch.cuda.is_initialized()


def test_none_found_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch.cuda.is_available()
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "1")
    assert torch.cuda.is_available()


def test_cuda_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_DRIVER", "cuda")
    with pytest.raises(RuntimeError, match=r"Found no NVIDIA driver.*FLAMBEAU_DRIVER=cuda"):
        torch.cuda.init()


class _Driver:
    """A libcuda of some version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self.version
        return 0


def _libraries(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], _Driver]) -> None:
    """What the search for real GPUs, and nobody else, loads."""
    names = ("c_int", "c_size_t", "byref", "create_string_buffer")
    fake = SimpleNamespace(CDLL=load, **{name: getattr(ctypes, name) for name in names})
    monkeypatch.setattr(probe, "ctypes", fake)


@pytest.mark.parametrize("forced", [False, True], ids=["auto", "FLAMBEAU_DRIVER=cuda"])
@pytest.mark.parametrize(
    ("version", "bindings", "text"),
    [
        (None, True, r"libcuda\.so\.1, which the NVIDIA driver installs, is not on this machine"),
        (12080, True, r"The NVIDIA driver on your system is too old \(found version 12080\): it supports CUDA 12\.8, and Flambeau needs CUDA 13, driver 580 or newer"),
        (13000, False, r"the packages that drive real GPUs are not installed: pip install 'flambeau\[cuda13\]'"),
    ],
    ids=["no driver", "too old", "no extra"],
)  # fmt: skip
def test_cuda_says_how_to_fix_what_is_missing(
    version: int | None, bindings: bool, text: str, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> _Driver:
        if version is None or name != "libcuda.so.1":
            raise OSError(name)
        return _Driver(version)

    _libraries(monkeypatch, load)
    monkeypatch.setattr(probe, "_has", lambda module: bindings)
    if forced:
        monkeypatch.setenv("FLAMBEAU_DRIVER", "cuda")
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    usable = r" that Flambeau can use" if version else ""  # with none PyTorch's sentence to the letter
    said = rf"^Found no NVIDIA driver on your system{usable}\. Please check that you .*\(.*{text}.*\)"
    for use in (torch.cuda.init, lambda: torch.ones(1, device="cuda"), lambda: torch.ones(1).cuda()):
        with pytest.raises(RuntimeError, match=said):
            use()
    assert text.replace("\\", "") in torch.doctor()


def test_the_first_real_gpu_must_be_found_without_nvidia_s_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    _libraries(monkeypatch, lambda name: _Driver(13000))
    monkeypatch.setattr(probe, "_has", lambda module: True)
    before = set(sys.modules)
    assert probe.why_not() is None
    assert not [name for name in set(sys.modules) - before if name.startswith(("cuda", "nvidia"))]


def test_a_call_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "4")
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_PROFILE", "v100")
    monkeypatch.setenv("FLAMBEAU_SCHEDULE", "random:3")
    monkeypatch.setenv("FLAMBEAU_RACES", "nonsense")
    with torch.virtual(devices=1, profile="h100", races="off"):
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
    monkeypatch.delenv("FLAMBEAU_RACES")
    with torch.virtual(profile="h100") as machine:  # the rest is as the environment says
        assert torch.cuda.device_count() == 4
        assert "random:3" in repr(machine)
    assert torch.cuda.device_count() == 4
    assert torch.cuda.get_device_capability() == (7, 0)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("FLAMBEAU_DRIVER", "gpu", "auto, cuda, virtual"),
        ("FLAMBEAU_VIRTUAL_DEVICES", "two", "whole number"),
        ("FLAMBEAU_VIRTUAL_DEVICES", "-1", "whole number"),
        ("FLAMBEAU_VIRTUAL_DEVICES", "1.5", "whole number"),
        ("FLAMBEAU_VIRTUAL_PROFILE", "z9000", "a100-40g"),
        ("FLAMBEAU_SCHEDULE", "random", "a number is missing"),
        ("FLAMBEAU_RACES", "maybe", "off, warn, error"),
    ],
)
def test_malformed_values_raise_at_first_use(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    if name != "FLAMBEAU_VIRTUAL_DEVICES":
        monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "1")
    monkeypatch.setenv(name, value)
    for use in (torch.cuda.init, torch.cuda.device_count, lambda: torch.zeros(1, device="cuda")):
        with pytest.raises(ValueError) as caught:
            use()
        assert all(text in str(caught.value) for text in (name, repr(value), allowed)), caught.value
    with pytest.warns(UserWarning, match=f"CUDA initialization: .*{name}"):
        assert torch.cuda.is_available() is False
    monkeypatch.delenv(name)
    torch.cuda.device_count()


# -- CUDA_VISIBLE_DEVICES -----------------------------------------------------------------------------------
UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3", "GPU-dddd-4"]


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 2 ", [1, 2]),
        ("0,-1,2", [0]),
        ("-1", []),
        ("1,9,2", [1]),
        ("0,x,1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("0,0", []),
        ("0,1,0", []),
        ("GPU-cccc-3,GPU-aaaa-1", [2, 0]),
        ("GPU-cc", [2]),
        ("GPU-aa", []),  # fits two
        ("GPU-aab,GPU-zz,GPU-dd", [1]),
        ("GPU-cc,GPU-cccc", []),  # one device twice
        ("GPU-cc,1", [2]),
        ("MIG-1234", []),
        ("NoDevFiles", []),
    ],
)
def test_a31_visible_devices(text: str | None, visible: list[int]) -> None:
    assert configuration.visible_devices(text, UUIDS) == visible


def test_a31_indices_agree_with_pytorch() -> None:
    real = pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    texts = ["0,1,2", "3,1", "1gpu2,2ampere", "0,-1,2", "-1", "0,0", "1, 2", "+1", "x", "", "2,,3", "0x1,2"]
    for text in texts:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", text)
            theirs = real.cuda._parse_visible_devices()
        assert configuration.visible_devices(text, UUIDS) == theirs, text


def test_a31_a_subset_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.virtual(devices=3):
        uuids = [torch.cuda.get_device_properties(i).uuid for i in range(3)]
    for text in ("2,0", f"GPU-{uuids[2]},GPU-{uuids[0][:8]}"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        with torch.virtual(devices=3):
            assert torch.cuda.device_count() == 2
            assert [torch.cuda.get_device_properties(i).uuid for i in range(2)] == [uuids[2], uuids[0]]
            with torch.cuda.device(1), torch.cuda.device(0):
                torch.cuda._sleep(1000)
            torch.cuda.synchronize(0)
            with pytest.raises(RuntimeError, match=r"invalid device ordinal"):
                torch.cuda.set_device(2)


def test_a31_a_later_change_warns_once_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with torch.virtual(devices=3):
        torch.cuda.init()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
        with pytest.warns(UserWarning, match=r"CUDA_VISIBLE_DEVICES was changed to '2'"):
            assert torch.cuda.device_count() == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.cuda.device_count() == 2


# -- CUDA_LAUNCH_BLOCKING -----------------------------------------------------------------------------------
def _failing(launch: Launch) -> object:
    def body(outputs: list[np.ndarray], inputs: list[object]) -> None:
        raise ZeroDivisionError("device-side")

    return body


FAILING = Kernel("failing", _failing, cycles=lambda scalars: 1000)


def test_d07_d08_errors_come_late_and_with_launch_blocking_at_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.virtual(devices=1):
        launch_sleep(FAILING, device("cuda:0"), 1)
        with pytest.raises(RuntimeError):
            torch.cuda.synchronize()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with torch.virtual(devices=1), pytest.raises(RuntimeError):
        launch_sleep(FAILING, device("cuda:0"), 1)


@pytest.mark.parametrize(("value", "blocking"), [("1", True), ("0", False), ("", False), (None, False)])
def test_d01_d06_launches_are_asynchronous_unless_blocking(
    monkeypatch: pytest.MonkeyPatch, value: str | None, blocking: bool
) -> None:
    if value is not None:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    for _ in range(2):  # also where a plan was made before
        with torch.virtual(devices=1):
            torch.cuda._sleep(10**6)
            x = torch.zeros(3, device="cuda")
            x.fill_(1.0)
            assert torch.cuda.current_stream().query() is blocking
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    with torch.virtual(devices=1):
        torch.cuda._sleep(10**6)
        assert not torch.cuda.current_stream().query()


# -- flags --------------------------------------------------------------------------------------------------
@pytest.fixture
def flags_kept() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def test_c01_c02_tf32_flags_default_to_true(flags_kept: None) -> None:
    assert torch.backends.cuda.matmul.allow_tf32 is True
    assert torch.backends.cudnn.allow_tf32 is True
    assert torch.backends.cudnn.enabled is True
    assert torch.backends.cudnn.benchmark is False
    assert torch.backends.cudnn.deterministic is False
    assert torch.backends.cuda.is_built() is True


def test_c03_the_flags_are_apart(flags_kept: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.backends.cudnn.allow_tf32 is True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    assert torch.backends.cuda.matmul.allow_tf32 is True


def test_matmul_precision_follows_and_leads_the_flag(flags_kept: None) -> None:
    for precision, allowed in [("highest", False), ("high", True), ("medium", True)]:
        torch.set_float32_matmul_precision(precision)
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(RuntimeError, match=r"expects a str, but got int"):
        torch.set_float32_matmul_precision(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x is not one of 'highest', 'high', or 'medium'"):
        torch.set_float32_matmul_precision("x")
    assert torch.get_float32_matmul_precision() == "highest"


def test_misspelt_flags_are_refused() -> None:
    for owner in (torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda):
        with pytest.raises(AttributeError, match=r"alow_tf32"):
            owner.alow_tf32  # noqa: B018
        with pytest.raises(AttributeError, match=r"alow_tf32"):
            owner.alow_tf32 = False
    for owner in (torch.backends.cuda.matmul, torch.backends.cudnn):
        with pytest.raises(RuntimeError, match=r"expects a bool, but got int"):
            owner.allow_tf32 = 1
