"""Programs that go wrong as a whole: they never synchronize, have thousands of streams, wait for what never comes."""

from __future__ import annotations

from cli_kit import flambeau_run, program


def test_a_program_that_never_synchronizes_ends_with_its_report(tmp_path):
    """More work than launch queues hold, on two streams, and nobody ever waits for it."""
    script = program(
        tmp_path,
        """
        import torch
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        y = torch.zeros(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        for _ in range(4000):
            x.add_(1)
            with torch.cuda.stream(side):
                y.add_(1)
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 0 and done.certificate["race_free"]
    assert done.machine["time_ns"] > 4000 * 2 * 1000


def test_thousands_of_streams_are_proved_race_free(tmp_path):
    """Each uses memory of its own and waits for the one before; each gives its memory back."""
    script = program(
        tmp_path,
        """
        import torch
        streams = [torch.cuda.Stream() for _ in range(1200)]
        x = torch.ones(64, device="cuda")
        torch.cuda.synchronize()
        for one, other in zip(streams, streams[1:]):
            other.wait_stream(one)
            with torch.cuda.stream(other):
                y = x * 2
        with torch.cuda.stream(streams[-1]):
            x.add_(1)
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 0 and done.certificate["race_free"]
    broken = program(tmp_path, script.read_text().replace("streams[-1]", "streams[0]"), "broken.py")
    found = flambeau_run(tmp_path, broken).certificate["races"]
    assert [race["fix"]["call"] for race in found] == ["wait_stream"] * len(found) and found


DEADLOCK = """
import torch
import torch.distributed as dist
from flambeau.testing.ranks import ranks

def body():
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        {wait}

ranks(body, 2)
"""


def test_what_never_comes_is_told_with_the_programs_lines(tmp_path):
    for wait, line in (
        ("work.wait(); torch.cuda.synchronize()", "at program.py:12: the host waits for device cuda:0"),
        ("work.wait(); x.tolist()", "the host waits for the default stream of cuda:0"),
        ("any(iter(work.is_completed, True))", "the program asks without end at program.py:12"),
    ):
        done = flambeau_run(tmp_path, "--quiet", program(tmp_path, DEADLOCK.replace("{wait}", wait)))
        assert done.status == 1 and line in done.err, done.err
        assert "at program.py:11 waits for rank 1 (cuda:1), which has not arrived" in done.err
        assert "rank 1 has ended" in done.err


def test_a_failure_that_the_program_handled_leaves_its_status(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        x = torch.arange(3, device='cuda')
        try:
            x[torch.tensor([5], device='cuda')].tolist()
        except RuntimeError as error:
            print('handled')
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert (done.status, done.out) == (0, "handled\n")
    assert "ended without waiting for this" not in done.err


def test_anomaly_detection_shows_the_programs_frames_alone(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        with torch.autograd.set_detect_anomaly(True):
            y = (torch.zeros(2, device='cuda', requires_grad=True).sqrt() * 0).sum()
            try:
                y.backward()
            except RuntimeError as error:
                print(error)
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 0 and "SqrtBackward0" in done.out
    told = done.err.partition("Traceback of forward call that caused the error:")[2]
    assert told.count("  File ") == 1 and ".sqrt() * 0" in told and "run.py" not in told
