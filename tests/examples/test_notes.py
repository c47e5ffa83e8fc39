"""The programs of PyTorch's CUDA notes, word for word: under `flambeau run`, and their variables one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpus
import pytest
from cli.cli_kit import EXAMPLES, flambeau_run
from gpus import either

import flambeau
from flambeau.runtime import system

NOTES = EXAMPLES / "notes"
DEVICES = {"placement": 3, "cross_gpu": 2, "visible_devices": 2, "plan_cache": 2}
RACES = {"incorrect_stream", "backward"}
UNUSED = {"ones_like", "tf32_flags", "tf32_off"}  # these make no CUDA tensor
OUTPUTS = {
    "cross_gpu": r"Expected all tensors to be on the same device, but found .*, cuda:0 and cuda:1!.*\n"
    r"tensor\(\[3., 3., 3.\], device='cuda:0'\) tensor\(\[3., 3., 3.\], device='cuda:1'\)\n",
    "device_agnostic": r"cuda:0\n",
    "event_timing": r"\d+\.\d{3} ms\n",
    "new_tensors": r"tensor\(\[\[0.3000, 0.3000\],\n        \[0.3000, 0.3000\],\n        \[0.3000, 0.3000\]\]\)\n"
    r"tensor\(\[\[-5., -5.\],\n        \[-5., -5.\],\n        \[-5., -5.\]\], device='cuda:0'\)\n"
    r"tensor\(\[\[1, 2, 3\]\]\)\n",
    "pinned": r"ok\n",
    "visible_devices": r"Outside device is 0\nInside device is 1\nOutside device is still 0\n",
}


@contextmanager
def variables(name: str, schedule: str = "earliest", devices: int | None = None) -> Iterator[dict[str, Any]]:
    """Run a program on virtual GPUs in this process; its variables, while the GPUs are open."""
    text = (NOTES / f"{name}.py").read_text().replace("import torch\n", "import flambeau as torch\n", 1)
    found: dict[str, Any] = {"__name__": "__main__"}
    with flambeau.virtual(devices or DEVICES.get(name, 1), schedule=schedule, races="warn"):
        driver: Any = system.context_of(flambeau.device("cuda:0")).driver
        exec(compile(text, str(NOTES / f"{name}.py"), "exec"), found)
        found["certificate"] = driver.detector.certificate()
        yield found
        found.clear()


def test_each_program_is_known_here():
    """A new program needs a line in the tables above."""
    assert {path.stem for path in NOTES.glob("*.py")} >= DEVICES.keys() | RACES | UNUSED | OUTPUTS.keys()


@either
@pytest.mark.parametrize("path", sorted(NOTES.glob("*.py")), ids=lambda p: p.stem)
def test_program_under_flambeau_run(tmp_path, path):
    count = DEVICES.get(path.stem, 1)
    if gpus.real and count > flambeau.cuda.device_count():
        pytest.skip("too few GPUs")
    where = ("--driver", "cuda", "--races", "warn") if gpus.real else ("--devices", count)
    done = flambeau_run(tmp_path, *where, path)
    assert done.status == 0, done.err
    assert re.fullmatch(OUTPUTS.get(path.stem, ""), done.out), done.out
    if path.stem in UNUSED:
        assert done.report["machines"] == []
        return
    assert done.certificate["race_free"] is (path.stem not in RACES)
    assert len(done.certificate["races"]) == (path.stem in RACES)
    assert {device["left_allocated"] for device in done.machine["devices"]} == {0}


def test_placement():
    """A05-A08, A14-A23, R01: the devices that its comments state."""
    with variables("placement") as names:
        stated = {0: "x y z", 1: "a b b2 c", 2: "d e f"}
        for index, which in stated.items():
            for name in which.split():
                assert names[name].device == flambeau.device("cuda", index), name
                assert repr(names[name].device) == f"device(type='cuda', index={index})"
        assert names["c"].tolist() == names["z"].tolist() == [2.0, 4.0]
        assert names["cuda"].index is None and names["cuda2"].index == 2
        assert flambeau.cuda.current_device() == 0


def test_placement_as_004_has_it():
    """R02: without z, d, e and f, so that two GPUs are enough."""
    text = (NOTES / "placement.py").read_text().replace("import torch\n", "import flambeau as torch\n", 1)
    names: dict[str, Any] = {}
    with flambeau.virtual(2):
        exec(re.sub(r"(?m)^ *[zdef] = .*$", "", text), names)
        assert [names[n].device.index for n in "xyabc"] == [0, 0, 1, 1, 1] and "d" not in names
        names.clear()


def test_placement_needs_three_gpus():
    with pytest.raises(RuntimeError, match="invalid device ordinal"), variables("placement", devices=2):
        pass


def test_visible_devices(tmp_path):
    """J05, R12: and the device really is what the program prints."""
    text = (NOTES / "visible_devices.py").read_text()
    text = re.sub(r"( *)print\((.*?)\)", r"\1print(\2, torch.cuda.current_device())", text)
    script = tmp_path / "visible.py"
    script.write_text(text)
    for visible in ("1,0", "0,1"):
        done = flambeau_run(tmp_path, script, env={"CUDA_VISIBLE_DEVICES": visible})
        assert done.out == "Outside device is 0 0\nInside device is 1 1\nOutside device is still 0 0\n"
    done = flambeau_run(tmp_path, script, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert done.status == 1 and "invalid device ordinal" in done.err


def test_new_tensors():
    """J06, J09-J12, R13."""
    with variables("new_tensors") as names:
        cpu, gpu = flambeau.device("cpu"), flambeau.device("cuda:0")
        assert (names["y_cpu"].device, names["y_cpu"].dtype) == (cpu, flambeau.float32)
        assert (names["y_gpu"].device, names["y_gpu"].dtype) == (gpu, flambeau.float32)
        assert (names["y_cpu_long"].device, names["y_cpu_long"].dtype) == (cpu, flambeau.int64)
        assert names["y_gpu"].tolist() == [[-5.0, -5.0]] * 3


def test_new_tensors_print_as_pytorchs(tmp_path):
    """But for the device, which PyTorch's CPU build cannot name."""
    torch = pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    text = (NOTES / "new_tensors.py").read_text().replace("torch.device('cuda')", "torch.device('cpu')")
    shown: list[str] = []
    exec(text, {"torch": torch, "print": lambda tensor: shown.append(str(tensor))})
    done = flambeau_run(tmp_path, NOTES / "new_tensors.py")
    shown[1] = shown[1][:-1] + ", device='cuda:0')"
    assert done.out == "\n".join(shown) + "\n"


def test_ones_like():
    """J13, R14."""
    with variables("ones_like") as names:
        assert names["y_cpu"].tolist() == [[1.0] * 3] * 2
        assert names["y_gpu"].tolist() == [[0.0] * 3] * 2
        assert names["y_cpu"].dtype == names["y_gpu"].dtype == flambeau.float32


def test_loader():
    """R11."""
    with variables("loader") as names:
        assert names["x"].device == flambeau.device("cuda:0")
        assert names["x"].tolist() == names["train_loader"][-1].tolist()
        assert names["i"] == 2


def test_cross_gpu():
    """B01-B03."""
    with variables("cross_gpu") as names:
        assert names["x"].tolist() == [2.0] * 3
        assert (names["z"].device.index, names["w"].device.index) == (0, 1)


def test_plan_cache():
    """R15: set, read back, and on that device alone."""
    with variables("plan_cache"):
        caches = flambeau.backends.cuda.cufft_plan_cache
        assert caches[1].max_size == 10
        assert caches[0].max_size == caches.max_size == 4096


def test_tf32_flags_and_off():
    """C01, C02, C20, R03, R05."""
    matmul, cudnn = flambeau.backends.cuda.matmul, flambeau.backends.cudnn
    try:
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
        with variables("tf32_off"):
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
        with variables("tf32_flags"):
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    finally:
        matmul.allow_tf32 = cudnn.allow_tf32 = True


def test_tf32_error():
    """C17, C18, R04, at 1024: mean 25.5, TF32's relative error in [5e-4, 1e-2], FP32's below 1e-4, 10 times apart."""
    try:
        with variables("tf32_error") as names:
            mean = names["mean"].item()
            tf32 = (names["ab_tf32"] - names["ab_full"]).abs().max().item() / mean
            fp32 = names["relative_error"].item()
            assert mean == pytest.approx(25.5, abs=0.2)
            assert 5e-4 < tf32 < 1e-2
            assert fp32 < 1e-4
            assert tf32 / fp32 > 10
            assert names["error"].dtype == flambeau.float64
    finally:
        flambeau.backends.cuda.matmul.allow_tf32 = True


def test_event_timing():
    """F13, R06: milliseconds of the profile's simulated time."""
    with variables("event_timing") as names:
        moved = 4 << 22  # bytes that two elementwise kernels and a fill move at least
        fastest = moved / 1.555e12 * 1e3
        assert fastest < names["elapsed_time_ms"] < 100 * fastest
        assert names["y"][5].item() == 3.0


SCHEDULES = [
    "earliest",
    *[f"random:{seed}" for seed in range(8)],
    *[f"adversarial:{seed}" for seed in range(4)],
    "pct:1:3",
]


def sums(name: str) -> tuple[list[bool], list[Any]]:
    """Under each schedule: whether the sum was right, and the certificate."""
    right, certificates = [], []
    for schedule in SCHEDULES:
        with variables(name, schedule) as names:
            flambeau.cuda.synchronize()
            right.append(names["B"].item() == pytest.approx(names["A"].sum().item(), rel=1e-4))
            certificates.append(names["certificate"])
    return right, certificates


def test_incorrect_stream_gives_a_wrong_sum_under_some_schedules_and_is_named_under_all():
    """E14, E24, R07."""
    right, certificates = sums("incorrect_stream")
    assert True in right and False in right
    for certificate in certificates:
        (race,) = certificate.races
        assert race.first.place.endswith("incorrect_stream.py:7")
        assert race.second.place.endswith("incorrect_stream.py:10")
        assert (race.fix.call, race.fix.verified) == ("wait_stream", True)
        assert race.fix.lines == ("s.wait_stream(torch.cuda.default_stream())",)


def test_001_asks_for_a_stream_without_saying_which():
    """R08: a slip of 001's, `torch.cuda.stream()`; PyTorch raises TypeError."""
    with flambeau.virtual(1), pytest.raises(TypeError, match="stream"):
        flambeau.cuda.stream()


def test_backward_examples():
    """R09: the gradients of the safe ones are right under each schedule; the unsafe one runs, and is named."""
    for schedule in SCHEDULES:
        with variables("backward", schedule) as names:
            flambeau.cuda.synchronize()
            (race,) = names["certificate"].races
            assert race.first.place.endswith("backward.py:20") and race.second.place.endswith(
                "backward.py:22"
            )
            assert (
                names["weight"].grad - names["initial_grad"] * 2
            ).unique().numel() == 1  # 0 and 2, and what came of 1


OF_002 = [
    "placement", "tf32_flags", "tf32_error", "tf32_off", "event_timing", "incorrect_stream", "backward", "plan_cache",
    "device_agnostic", "loader", "visible_devices", "new_tensors", "ones_like", "pinned",
]  # fmt: skip
NETWORK = """
class Network(torch.nn.Linear):
    def __init__(self):
        super().__init__(42, 1)

net = Network().to(device=args.device)
assert net(x).device == x.device
"""


def test_all_of_002_in_one_process(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """R16: top to bottom, Network and train_loader supplied."""
    monkeypatch.setattr("sys.argv", ["notes.py"])
    names: dict[str, Any] = {"__name__": "__main__"}
    with flambeau.virtual(3, races="warn"):
        for name in OF_002:
            text = (
                (NOTES / f"{name}.py").read_text().replace("import torch\n", "import flambeau as torch\n", 1)
            )
            exec(text + NETWORK * (name == "device_agnostic"), names)
        assert names["net"].weight.is_cuda and names["c"].device.index == 1
        driver: Any = system.context_of(flambeau.device("cuda:0")).driver
        races = driver.detector.certificate().races
        # The two that the notes call incorrect; and nobody told the allocator that the unsafe gradient is in use.
        assert [race.fix.call for race in races] == ["wait_stream", "wait_stream", "record_stream"]
        names.clear()
    flambeau.backends.cuda.matmul.allow_tf32 = flambeau.backends.cudnn.allow_tf32 = (
        True  # as the program found them
    )
    assert "Inside device is 1" in capsys.readouterr().out


def test_correct_stream_is_right_and_certified_under_all():
    """E21, E23."""
    right, certificates = sums("correct_stream")
    assert set(right) == {True}
    assert all(certificate.race_free for certificate in certificates)


# -- the argparse pattern (J01, J02, R10) --------------------------------------------------------------


def test_device_agnostic_without_cuda(tmp_path):
    """J01, J02, R10."""
    done = flambeau_run(tmp_path, NOTES / "device_agnostic.py", "--disable-cuda")
    assert (done.status, done.out, done.report["machines"]) == (0, "cpu\n", [])


def test_device_agnostic_where_there_is_none(tmp_path):
    done = flambeau_run(tmp_path, "--devices", 0, NOTES / "device_agnostic.py")
    assert (done.status, done.out) == (0, "cpu\n")


def test_device_agnostic_help(tmp_path):
    done = flambeau_run(tmp_path, "--quiet", NOTES / "device_agnostic.py", "--help")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("usage: device_agnostic.py [-h] [--disable-cuda]\n\nPyTorch Example")
    assert "Disable CUDA" in done.out
