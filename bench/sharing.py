"""Time to send a tensor to another process and back.

`python bench/sharing.py [flambeau] [torch]`.

Each turn sends a tensor by a pipe and gets a number back; microseconds, the median of the turns. "shared" is a tensor
that is in shared memory already, "fresh" one that is moved there; "virtual" a CUDA tensor of a virtual GPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from importlib import import_module
from typing import Any

TURNS = 200
SIZES = {"4 KiB": 1 << 10, "4 MiB": 1 << 20}


def answer(pipe: Any) -> None:
    while pipe.recv() is not None:
        pipe.send(1)


def microseconds(pipe: Any, make: Any) -> float:
    taken = []
    for _ in range(TURNS):
        value = make()
        start = time.perf_counter()
        pipe.send(value)
        pipe.recv()
        taken.append(time.perf_counter() - start)
    return 1e6 * statistics.median(taken)


def same(value: Any) -> Any:
    return value


def main() -> None:
    for name in sys.argv[1:] or ["flambeau"]:
        torch, mp = import_module(name), import_module(f"{name}.multiprocessing")
        context = mp.get_context("spawn")
        if name == "flambeau":
            torch.virtual(1)
        ours, theirs = context.Pipe()
        process = context.Process(target=answer, args=(theirs,), daemon=True)
        process.start()
        print(f"{name}, nothing but a number: {microseconds(ours, partial(same, 1)):8.0f} us")
        make = torch.ones
        for size, count in SIZES.items():
            x = torch.ones(count).share_memory_()
            print(f"{name}, {size:>6} shared:        {microseconds(ours, partial(same, x)):8.0f} us")
            print(f"{name}, {size:>6} fresh:         {microseconds(ours, partial(make, count)):8.0f} us")
            if name == "flambeau":
                y = torch.ones(count, device="cuda")
                print(f"{name}, {size:>6} virtual:       {microseconds(ours, partial(same, y)):8.0f} us")
        ours.send(None)
        process.join()


if __name__ == "__main__":
    main()
