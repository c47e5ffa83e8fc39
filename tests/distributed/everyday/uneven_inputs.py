"""PyTorch's tutorial on uneven inputs: a Joinable of its own, DistributedDataParallel with ZeRO, an early end."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SIZE, INPUTS = 2, 5


class CounterJoinHook(JoinHook):
    def __init__(self, counter, sync_max_count):
        self.counter, self.sync_max_count = counter, sync_max_count

    def main_hook(self):
        dist.all_reduce(torch.zeros(1, device=self.counter.device))

    def post_hook(self, is_last_joiner):
        if not self.sync_max_count:
            return
        rank = dist.get_rank(self.counter.process_group)
        common = self.counter.find_common_rank(rank, is_last_joiner)
        if rank == common:
            self.counter.max_count = self.counter.count.detach().clone()
        dist.broadcast(self.counter.max_count, src=common)


class Counter(Joinable):
    def __init__(self, device, process_group):
        super().__init__()
        self.device, self.process_group = device, process_group
        self.count, self.max_count = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def __call__(self):
        Join.notify_join_context(self)
        t = torch.ones(1, device=self.device)
        dist.all_reduce(t)
        self.count += t

    def join_hook(self, **kwargs):
        return CounterJoinHook(self, kwargs.get("sync_max_count", True))

    @property
    def join_device(self):
        return self.device

    @property
    def join_process_group(self):
        return self.process_group

    def find_common_rank(self, rank, to_consider):
        common = torch.tensor([rank if to_consider else -1], device=self.device)
        dist.all_reduce(common, op=dist.ReduceOp.MAX, group=self.process_group)
        return common.item()


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def worker(rank, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    dist.init_process_group("nccl", rank=rank, world_size=SIZE)
    torch.cuda.set_device(rank)
    counter = Counter(torch.device(f"cuda:{rank}"), dist.group.WORLD)
    inputs = [torch.tensor([1.0]) for _ in range(INPUTS + rank)]
    with Join([counter], sync_max_count=True):
        for _ in inputs:
            counter()
    say(f"{int(counter.count.item())} inputs processed before rank {rank} joined!")
    say(f"{int(counter.max_count.item())} inputs processed across all ranks!")
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(rank), device_ids=[rank])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    seen = 0
    with Join([model, optimizer]):
        for x in inputs:
            seen += 1
            model(x.to(rank)).sum().backward()
            optimizer.step()
    say(f"Rank {rank} exhausted all {seen} of its inputs!")
    try:
        with model.join(throw_on_early_termination=True):
            for x in inputs:
                model(x.to(rank)).sum().backward()
    except RuntimeError as error:
        assert "exhausted" in str(error)
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = str(listener.getsockname()[1])
    mp.spawn(worker, (free,), nprocs=SIZE, join=True)
