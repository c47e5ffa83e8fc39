"""CUDA tensors through every channel of torch.multiprocessing, under both start methods, on two GPUs."""

from __future__ import annotations

from typing import Any

import gpus
import pytest

import flambeau as torch
import flambeau.multiprocessing as mp

pytestmark = gpus.either

QUEUES = ("Queue", "JoinableQueue", "SimpleQueue")


def _serve(queues: list[Any], pipe: Any, given: torch.Tensor, answers: Any) -> None:
    """Add 1 to what each channel brings, in place, and say what it was."""
    for take in (*[queue.get for queue in queues], pipe.recv, lambda: given):
        x = take()
        before = x.tolist()
        x.add_(1)
        torch.cuda.synchronize(x.device)
        answers.put((str(x.device), before))
        del x
    pipe.recv()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_every_channel_brings_the_memory_itself(method: str) -> None:
    with gpus.gpus(2):
        context = mp.get_context(method)
        sent = [torch.full((3,), float(i), device=f"cuda:{i % 2}") for i in range(5)]
        queues, answers = [getattr(context, kind)() for kind in QUEUES], context.SimpleQueue()
        mine, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(queues, theirs, sent[4], answers), daemon=True)
        child.start()
        for put, x in zip([*[queue.put for queue in queues], mine.send], sent[:4], strict=True):
            put(x)
        for i, x in enumerate(sent):
            assert answers.get() == (f"cuda:{i % 2}", [i] * 3)
            assert x.tolist() == [i + 1] * 3
        mine.send(None)
        child.join(300)
        assert child.exitcode == 0
        for queue in queues[:2]:
            queue.close()
            queue.join_thread()
        del child, sent, x
        torch.cuda.ipc_collect()
        assert [torch.cuda.memory_allocated(i) for i in range(2)] == [0, 0]
