"""Cases of several ranks, asked of PyTorch's processes with gloo and of Flambeau's ranks.

A module of cases has CASES: name -> function(torch, device) that all ranks run, which gives tensors (or what JSON can
hold). `python oracle_ranks.py LIBRARY DEVICE BACKEND OUT MODULES` is one rank, with RANK and WORLD_SIZE;
`python oracle_ranks.py OUT MODULES` is all of PyTorch's, with WORLD_SIZE.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from rank_kit import finish, run_ranks, start

HERE = Path(__file__).parent


def answer(torch, case, device):
    """["value", what] or ["error", type, words], in JSON's kinds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ["value", plain(torch, case(torch, device))]
        except Exception as error:
            return ["error", type(error).__name__, str(error).replace("flambeau", "torch")]


def plain(torch, value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype).rpartition(".")[2], list(value.shape), value.detach().cpu().tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(torch, member) for member in value]
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)


def answers(torch, module, device, backend, **where):
    """Of one rank, by the names of the cases."""
    torch.distributed.init_process_group(backend, **where)
    found = {name: answer(torch, case, device) for name, case in import_module(module).CASES.items()}
    # A rank that left at once would end a group that others still connect.
    torch.distributed.all_reduce(torch.ones(1, device=device))
    torch.distributed.destroy_process_group()
    return json.loads(json.dumps(found))


GROUPS = {
    3: ("differentiable_cases", "functional_cases", "coalescing_cases"),
    4: ("mesh_cases", "averaging_cases", "everyday_cases"),
}


def pytorchs(module):
    """Of PyTorch's ranks: a list by rank."""
    size = next(size for size, modules in GROUPS.items() if module in modules)
    return [rank[module] for rank in _of_all(size)]


def of_processes(size, device, backend):
    """Of Flambeau's ranks that are processes: a list by rank, of all modules with so many ranks."""
    with TemporaryDirectory() as folder:
        program = str(HERE / "oracle_ranks.py")
        how = ("flambeau", device, backend, folder, *GROUPS[size])
        more = {"PYTHONWARNINGS": "ignore", "FLAMBEAU_VIRTUAL_DEVICES": str(size)}
        return _told(folder, run_ranks(size, program, *how, **more))


@cache
def _of_all(size):
    """Of all modules with so many ranks. They are forks of one process: to import PyTorch takes longer than to ask."""
    with TemporaryDirectory() as folder:
        program = start(
            str(HERE / "oracle_ranks.py"),
            folder,
            *GROUPS[size],
            WORLD_SIZE=str(size),
            PYTHONWARNINGS="ignore",
        )
        return _told(folder, [finish(program)] * size)


def _told(folder, said):
    assert not any(rank.status for rank in said), said
    return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(len(said))]


def ask(library, device, backend, folder, *modules):
    """Be one rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch = import_module(library)
    if device == "cuda":
        torch.cuda.set_device(rank)
    found = {}
    for module in modules:  # each with a store of its own, which nothing of the others' is in
        store = torch.distributed.FileStore(str(Path(folder) / f"{module}.store"), size)
        found[module] = answers(torch, module, device, backend, store=store, rank=rank, world_size=size)
    (Path(folder) / str(rank)).write_text(json.dumps(found))


def ask_pytorch(folder, *modules):
    """Be PyTorch's ranks, each a fork."""
    import_module("torch")
    ranks = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        os.environ["RANK"] = str(rank)
        ranks.append(
            multiprocessing.get_context("fork").Process(
                target=ask, args=("torch", "cpu", "gloo", folder, *modules)
            )
        )
        ranks[-1].start()
    for rank in ranks:
        rank.join()
    sys.exit(max(abs(rank.exitcode) for rank in ranks))


if __name__ == "__main__":
    (ask if "RANK" in os.environ else ask_pytorch)(*sys.argv[1:])
