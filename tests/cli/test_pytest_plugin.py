"""The pytest plugin in repositories of users: pytest in a process of its own, in a folder that knows nothing of it."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points

import pytest
from cli_kit import EXAMPLES, ROOT, environment, program
from warm_start import run_module

# An installation since the plugin came has its entry point; an older one of a checkout is told.
INSTALLED = bool(entry_points(group="pytest11", name="flambeau"))
PLUGIN = () if INSTALLED else ("-p", "flambeau.cli.plugin")
EXAMPLE = EXAMPLES / "ci_without_gpu"

RACY = """
    import pytest, torch

    @pytest.mark.parametrize("size", [10, 20])
    def test_sum(size):
        side = torch.cuda.Stream()
        x = torch.zeros(size, device="cuda")
        torch.cuda.synchronize()
        x.fill_(1.0)
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.synchronize()
        assert y.sum().item() == 2 * size
"""


def run(folder, *arguments):
    command = [*PLUGIN, "-p", "no:cacheprovider", "--rootdir", folder]
    command += ["-p", "no:hypothesispytest"]  # whose last words take half of the time
    command += ["-W", "error", *arguments]
    done = run_module("pytest", *command, env=environment(), cwd=folder)
    return done.returncode, done.stdout + done.stderr


def test_the_example_project_passes_and_is_mostly_proved():
    status, text = run(EXAMPLE, "--virtual-gpus=2", "--gpu-profile=h100", "--gpu-schedules=20")
    assert status == 0, text
    assert "90 passed" in text
    assert "87 of them not run: the first run of the test was certified" in text


def test_there_are_gpus_while_tests_are_collected_and_for_a_sessions_fixtures(tmp_path):
    text = """
        import pytest, torch
        needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

        @pytest.fixture(scope="session")
        def name():
            return torch.cuda.get_device_name(0)

        @needs_two
        def test_name(name):
            assert name == torch.cuda.get_device_name(1) and "H100" in name
            assert "pytest" not in type(torch.cuda.__loader__).__module__  # which would parse the whole package
    """
    program(tmp_path, text, "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=2", "--gpu-profile=h100", "--gpu-schedules=3")
    assert status == 0, text
    assert "3 passed" in text


def test_a_failure_shows_the_tests_own_frames(tmp_path):
    program(tmp_path, "import torch\ndef test_it():\n    torch.ones(2) @ torch.ones(3)\n", "test_it.py")
    _, said = run(tmp_path, "--virtual-gpus=1")
    assert "test_it.py:3: RuntimeError" in said
    assert "flambeau/tensor" not in said
    _, said = run(tmp_path, "--virtual-gpus=1", "--full-trace")
    assert "flambeau/tensor" in said


@pytest.mark.parametrize("more", [(), ("-n", "1")])
def test_a_conftest_may_import_torch(tmp_path, more):
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text("import torch\nHERE = torch.ones(3)\n")
    (tmp_path / "tests" / "conftest.py").write_text(
        "import pytest, torch\n@pytest.fixture\ndef x():\n    return torch.ones(3, device='cuda')\n"
    )
    program(tmp_path / "tests", "def test_x(x):\n    assert x.sum().item() == 3\n", "test_x.py")
    status, text = run(tmp_path, "--virtual-gpus=1", *more)
    assert status == 0, text
    assert "1 passed" in text


def test_the_example_with_a_wait_taken_out_fails_until_its_fix_is_applied(tmp_path):
    text = (EXAMPLE / "prefetch.py").read_text()
    without = text.replace("current.wait_stream(self._stream)", "pass")
    assert without != text
    (tmp_path / "prefetch.py").write_text(without)
    (tmp_path / "test_it.py").write_text((EXAMPLE / "tests" / "test_prefetch.py").read_text())
    status, said = run(tmp_path, "--virtual-gpus=2")
    assert status == 1
    assert "RaceError" in said
    line, fix = re.search(r"Fix: Before prefetch\.py:(\d+) insert: (.*)", said).groups()
    assert fix == "torch.cuda.default_stream(self._stream.device).wait_stream(self._stream)"
    lines = without.splitlines(keepends=True)
    indent = re.match(" *", lines[int(line) - 1]).group()
    lines.insert(int(line) - 1, f"{indent}{fix}\n")
    (tmp_path / "prefetch.py").write_text("".join(lines))
    status, said = run(tmp_path, "--virtual-gpus=2")
    assert status == 0, said


def test_each_failing_schedule_has_a_line_that_replays_it(tmp_path):
    program(tmp_path, RACY, "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=6", "--gpu-races=off")
    assert status == 1, text
    assert re.search(r"[1-9]\d* failed, [1-9]\d* passed", text), text
    lines = re.findall(r"replay: pytest (.*)", text)
    status, again = run(tmp_path, *shlex.split(lines[0]))
    assert status == 1 and "1 failed" in again, again


@pytest.mark.parametrize("schedules", [1, 3])
def test_a_replay_line_repeats_one_test_of_several_parameters(tmp_path, schedules):
    program(tmp_path, RACY, "test_it.py")
    _, text = run(tmp_path, "--virtual-gpus=1", f"--gpu-schedules={schedules}")
    lines = re.findall(r"replay: pytest (.*)", text)
    assert len(lines) == 2  # one for each race, however many schedules have it
    assert schedules == 1 or ("2 failed" in text and "4 same race" in text and "skipped" not in text), text
    status, again = run(tmp_path, *shlex.split(lines[0]))
    assert status == 1 and "1 failed in" in again, again


def test_a_proof_holds_for_each_parameter_under_all_schedules(tmp_path):
    text = RACY.replace("x.fill_(1.0)", "x.fill_(1.0); side.wait_stream(torch.cuda.current_stream())")
    program(tmp_path, text.replace("test_sum", "test_earliest"), "test_it.py")
    status, said = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=5")
    assert status == 0 and "10 passed" in said, said
    assert "10 tests and schedules, 8 of them not run: the first" in said, said


def test_options_that_no_test_heard_are_told(tmp_path):
    program(tmp_path, "def test_it(): pass\n", "test_it.py")
    told = "virtual GPUs: no test had any; --virtual-gpus=N gives each test N of them"
    for arguments, heard in (["--gpu-schedules=5"], False), (["--gpu-races=off"], False), ([], True):
        status, text = run(tmp_path, *arguments)
        assert status == 0 and (told not in text) is heard, text
    status, text = run(tmp_path, "--gpu-schedules=5", "--virtual-gpus=1")
    assert "virtual GPUs: 5 tests and schedules" in text and told not in text, text


def test_a_failure_of_a_fixture_has_its_line_too(tmp_path):
    text = (
        RACY.replace("def test_sum(size)", "def test_sum(size, made)")
        + """
    @pytest.fixture
    def made():
        x = torch.ones(3, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)
    """
    )
    program(tmp_path, text, "test_it.py")
    _, said = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=2")
    lines = re.findall(r"replay: pytest (.*)", said)
    assert "4 errors" in said and len(lines) == 4, said
    _, again = run(tmp_path, *shlex.split(lines[0]))
    assert "1 error in" in again, again


UNITTEST = """
    import pytest, torch, unittest

    class TestSums(unittest.TestCase):
        ran = []

        def setUp(self):
            self.x = torch.zeros(10, device="cuda")

        @classmethod
        def tearDownClass(cls):
            print("ran", *cls.ran)

        def test_proved(self):
            self.ran.append("proved")
            self.assertEqual(self.x.sum().item(), 0)

        @pytest.mark.gpu_schedules(2)
        def test_marked(self):
            torch.cuda.current_stream().query()
            self.ran.append("marked")

        def test_racy(self):
            side = torch.cuda.Stream()
            torch.cuda.synchronize()
            self.x.fill_(1.0)
            with torch.cuda.stream(side):
                y = self.x * 2
            torch.cuda.synchronize()
            self.assertEqual(y.sum().item(), 20)
"""


def test_methods_of_a_testcase_run_under_each_schedule(tmp_path):
    program(tmp_path, UNITTEST, "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=6", "--gpu-races=off", "-k", "racy")
    assert status == 1 and re.search(r"[1-5] failed, [1-5] passed, 8 deselected", text), text
    lines = re.findall(r"replay: pytest (.*)", text)
    status, again = run(tmp_path, *shlex.split(lines[0]))
    assert status == 1 and "1 failed in" in again, again


def test_a_race_in_a_testcase_shows_only_the_programs_frames(tmp_path):
    program(tmp_path, UNITTEST, "test_it.py")
    _, text = run(tmp_path, "--virtual-gpus=1", "-k", "racy")
    assert "RaceError" in text and "y = self.x * 2" in text and "findings.py" not in text, text


@pytest.mark.parametrize("more", [(), ("-n", "1")])
def test_a_method_of_a_testcase_that_is_proved_runs_once(tmp_path, more):
    program(tmp_path, UNITTEST, "test_it.py")
    status, text = run(
        tmp_path, "--virtual-gpus=1", "--gpu-schedules=6", "-k", "not racy", "-v", "-rA", *more
    )
    assert status == 0 and "8 passed" in text, text
    assert "test_it.py::TestSums::test_proved[random:0]" in text
    one = "test_it.py::TestSums::test_proved[random:0]"
    status, text = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=6", "-v", one)
    assert status == 0 and one in text and "1 passed in" in text, text


def test_races_are_failures_by_default_and_reports_if_asked(tmp_path):
    program(tmp_path, RACY, "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=1")
    assert status == 1 and "2 failed" in text
    status, text = run(tmp_path, "--virtual-gpus=1", "--gpu-races=warn", "-rA")
    assert status == 0 and "2 with races" in text and "nothing orders them" in text


def test_a_race_error_that_the_test_swallows_fails_it_all_the_same(tmp_path):
    text = RACY.replace(
        "            y = x * 2", "            try: y = x * 2\n            except RuntimeError: return"
    )
    program(tmp_path, text, "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=1")
    assert status == 1 and "2 failed" in text, text


def test_the_marker_and_the_fixture(tmp_path):
    text = """
        import flambeau as torch, pytest

        @pytest.mark.gpu_schedules(7)
        def test_marked(virtual_gpus):
            assert torch.cuda.device_count() == 2
            assert torch.ones(3, device="cuda").sum().item() == 3
            assert virtual_gpus.driver.token()

        def test_plain():
            assert not torch.cuda.is_initialized()
    """
    program(tmp_path, text, "test_it.py")
    status, said = run(tmp_path, "--strict-markers")
    assert status == 0 and "8 passed" in said, said
    assert "6 of them not run" in said


def test_state_of_one_test_does_not_reach_the_next(tmp_path):
    text = """
        import torch
        kept = []
        def test_first():
            kept.append(torch.ones(1 << 20, device="cuda"))
            torch.cuda.set_stream(torch.cuda.Stream())
        def test_second():
            assert torch.cuda.memory_allocated() == 0
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
    """
    program(tmp_path, text, "test_it.py")
    status, said = run(tmp_path, "--virtual-gpus=2")
    assert status == 0, said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--virtual-gpus=0"], "at least 1"),
        (["--virtual-gpus=1", "--gpu-schedules=0"], "at least 1"),
        (["--virtual-gpus=1", "--gpu-profile=x9"], "--gpu-profile: no profile is called 'x9'"),
        (["--virtual-gpus=1", "--gpu-schedule=replay:1abc"], "the token is damaged"),
        (["--virtual-gpus=1", "--gpu-races=maybe"], "invalid choice"),
        (["--virtual-gpus=1", "--gpu-schedule=latest"], "--gpu-schedule: schedule 'latest'"),
    ],
)
def test_bad_options_are_refused(tmp_path, arguments, why):
    program(tmp_path, "def test_it(): pass", "test_it.py")
    status, text = run(tmp_path, *arguments)
    assert status != 0 and why in text


def test_a_bad_marker_is_refused(tmp_path):
    program(tmp_path, "import pytest\n@pytest.mark.gpu_schedules('many')\ndef test_it(): pass", "test_it.py")
    status, text = run(tmp_path, "--virtual-gpus=1")
    assert status != 0 and "gpu_schedules takes one integer" in text


def test_each_racy_test_has_one_line_with_its_fix(tmp_path):
    program(tmp_path, RACY, "test_it.py")
    for races in ("error", "warn"):
        _, text = run(tmp_path, "--virtual-gpus=1", "--gpu-schedules=3", f"--gpu-races={races}")
        assert [line for line in text.splitlines() if line.startswith("RACE ")] == [
            f"RACE test_it.py::test_sum[{size}] - Before test_it.py:11 insert: "
            "side.wait_stream(torch.cuda.default_stream())"
            for size in (10, 20)
        ]
    _, text = run(tmp_path, "--virtual-gpus=1")
    assert re.search(r"memory: 40 bytes .* allocated at test_it.py:7  \| x = torch.zeros\(size", text)


HIDES_TORCH = """
    import sys
    from importlib.abc import MetaPathFinder

    class Hider(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    sys.meta_path.insert(0, Hider())
"""


@pytest.mark.parametrize("file", ["test_it.py", "conftest.py", "late"])
def test_a_missing_torch_is_explained(tmp_path, file):
    text = "import torch\ndef test_it(): pass" if file != "late" else "def test_it(): import torch"
    program(tmp_path, "def test_it(): pass", "test_it.py")
    program(tmp_path, text, "test_it.py" if file == "late" else file)
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    program(tmp_path, HIDES_TORCH, "sitecustomize.py")
    paths = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path,
        env=environment(PYTHONPATH=paths),
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode != 0 and "No module named 'torch'" in output
    assert output.count("this environment has no PyTorch; with `pytest --virtual-gpus=2`") == 1


def test_installing_the_package_installs_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"flambeau": "flambeau.cli.plugin"}
    assert project["optional-dependencies"]["pytest"]
