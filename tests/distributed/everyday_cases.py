"""Programs of everyday life on four ranks, as tutorials and repositories write them: by hand, with `torch.distributed`."""

from __future__ import annotations

import copy
import io
from importlib import import_module


def placed(torch, device):
    """The device of this rank."""
    return torch.device("cuda", torch.distributed.get_rank()) if device == "cuda" else torch.device("cpu")


def module(torch, name):
    return import_module(f"{torch.__name__}.{name}")


def net(torch, device, seed=0):
    """Weights that are whole eighths: sums of a few are exact."""
    made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).double()
    with torch.no_grad():
        for place, p in enumerate(made.parameters()):
            flat = [((5 * i + 3 * place + seed) % 9 - 4) / 8 for i in range(p.numel())]
            p.copy_(torch.tensor(flat, dtype=p.dtype).reshape(p.shape))
    return made.to(placed(torch, device))


def batch(torch, device, size=4, seed=0):
    rank = torch.distributed.get_rank()
    flat = [((7 * i + 5 * rank + seed) % 13 - 6) / 4 for i in range(size * 4)]
    return torch.tensor(flat, dtype=torch.float64).reshape(size, 4).to(placed(torch, device))


def rounded(torch, *tensors):
    return [[round(x, 9) for x in t.detach().cpu().flatten().tolist()] for t in tensors]


def gradients_by_hand(torch, device):
    """'Writing Distributed Applications with PyTorch'."""
    dist = torch.distributed
    model = net(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    size = float(dist.get_world_size())
    for step in range(3):
        optimizer.zero_grad()
        model(batch(torch, device, seed=step)).pow(2).mean().backward()
        for param in model.parameters():
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size
        optimizer.step()
    return rounded(torch, *model.parameters())


def ring_all_reduce(torch, device):
    """The same tutorial's own ring. Pairs of GPUs are made when they first meet: so every second rank begins to receive."""
    dist = torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    send = batch(torch, device)
    send_buff, recv_buff, accum = send.clone(), send.clone(), send.clone()
    left, right = ((rank - 1) + size) % size, (rank + 1) % size
    for i in range(size - 1):
        out, into = (send_buff, recv_buff) if i % 2 == 0 else (recv_buff, send_buff)
        if rank % 2:
            work = dist.irecv(into, left)
            dist.send(out, right)
        else:
            work = dist.isend(out, right)
            dist.recv(into, left)
        work.wait()
        accum[:] += into[:]
    return accum


def ring_by_batches(torch, device):
    """Keys go around, as in ring attention, while they are worked on."""
    dist = torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    q, k = batch(torch, device, seed=1), batch(torch, device, seed=2)
    total = torch.zeros(4, 4, dtype=torch.float64, device=k.device)
    for step in range(size):
        if step + 1 < size:
            incoming = torch.empty_like(k)
            ops = [
                dist.P2POp(dist.isend, k.contiguous(), (rank + 1) % size),
                dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
            ]
            works = dist.batch_isend_irecv(ops)
        total = total + q @ k.t()
        if step + 1 < size:
            for work in works:
                work.wait()
            k = incoming
    return total


def pipeline(torch, device):
    """Stages send activations forward and gradients back."""
    dist = torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    where = placed(torch, device)
    stage = torch.nn.Linear(4, 4, bias=False).double().to(where)
    with torch.no_grad():
        stage.weight.copy_(torch.eye(4, dtype=torch.float64) * (rank + 1))
    for micro in range(2):
        if rank == 0:
            x = batch(torch, device, seed=micro)
        else:
            x = torch.empty(4, 4, dtype=torch.float64, device=where)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank + 1 < size:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.pow(2).sum().backward()
        if rank:
            dist.send(x.grad, rank - 1)
    return stage.weight.grad


def experts(torch, device):
    """Tokens go to experts on other ranks and come back, unevenly, with gradients."""
    dist = torch.distributed
    functional = module(torch, "distributed.nn.functional")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = batch(torch, device, size=6).requires_grad_()
    goes = torch.tensor([(i * (rank + 1) + rank) % size for i in range(6)])
    order = torch.argsort(goes, stable=True)
    sent = torch.bincount(goes, minlength=size)
    counts = torch.empty_like(sent).to(x.device)
    dist.all_to_all_single(counts, sent.to(x.device))
    came = counts.tolist()
    tokens = torch.empty(sum(came), 4, dtype=x.dtype, device=x.device)
    tokens = functional.all_to_all_single(tokens, x[order.to(x.device)], came, sent.tolist())
    answers = tokens * (rank + 1)
    back = torch.empty_like(x)
    back = functional.all_to_all_single(back, answers, sent.tolist(), came)
    y = torch.empty_like(x).index_copy(0, order.to(x.device), back)
    (y * y).sum().backward()
    return [y, x.grad, came]


def objects(torch, device):
    """Metrics and settings."""
    dist = torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    metrics = [None] * size
    dist.all_gather_object(metrics, {"loss": rank / 2, "name": f"r{rank}"})
    settings = [{"lr": 0.1, "layers": [1, 2]} if rank == 0 else None, "x" if rank == 0 else None]
    dist.broadcast_object_list(settings, src=0)
    mine = [None]
    dist.scatter_object_list(mine, [[i] * i for i in range(size)] if rank == 1 else None, src=1)
    collected = [None] * size if rank == 2 else None
    dist.gather_object((rank, "ok"), collected, dst=2)
    if rank == 0:
        dist.send_object_list(["a", {"b": 1}], dst=3)
    got = [None, None]
    if rank == 3:
        dist.recv_object_list(got, src=0)
    return str([metrics, settings, mine, collected, got])


def asynchronous(torch, device):
    """Parameters are gathered while the layer before works."""
    dist = torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    where = placed(torch, device)
    shards = [torch.full((4, 4 // size), float(rank + layer), device=where) for layer in range(3)]
    x, pending = torch.ones(2, 4, device=where), []
    for shard in shards:
        whole = torch.empty(size, 4, 4 // size, device=where)
        pending.append((whole, dist.all_gather_single(whole, shard.reshape(1, 4, -1), async_op=True)))
    for whole, work in pending:
        work.wait()
        x = x @ whole.permute(1, 0, 2).reshape(4, 4) / 8
    return x


def mean_and_variance(torch, device):
    """Of numbers that lie on all ranks, with MAX, MIN and averages."""
    dist = torch.distributed
    x = batch(torch, device)
    stats = torch.stack(
        [x.sum(), (x * x).sum(), torch.tensor(float(x.numel()), device=x.device, dtype=x.dtype)]
    )
    dist.all_reduce(stats)
    high, low = x.max(), x.min()
    dist.all_reduce(high, dist.ReduceOp.MAX)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    mean = stats[0] / stats[2]
    return [mean, stats[1] / stats[2] - mean * mean, high, low]


def groups_of_groups(torch, device):
    """Reduce within the node, then between its first ranks, then give it to the others."""
    dist = torch.distributed
    rank = dist.get_rank()
    mine, nodes = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    heads = dist.new_group([0, 2])
    x = torch.full((3,), 10.0**rank, device=placed(torch, device))
    dist.reduce(x, dst=rank // 2 * 2, group=mine)
    if rank % 2 == 0:
        dist.all_reduce(x, group=heads)
    dist.broadcast(x, src=rank // 2 * 2, group=mine)
    dist.barrier()
    return [x, len(nodes), dist.get_world_size(mine), dist.get_rank(mine)]


def ddp_with_accumulation(torch, device):
    """no_sync, clipping, a schedule, checkpoints from rank 0, and its metrics."""
    dist = torch.distributed
    where = placed(torch, device)
    ids = [where.index] if device == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(
        net(torch, device, seed=dist.get_rank()), device_ids=ids
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    norms = []
    for step in range(2):
        for micro in range(2):
            if micro == 0:
                with model.no_sync():
                    (model(batch(torch, device, seed=step)).pow(2).mean() / 2).backward()
            else:
                (model(batch(torch, device, seed=step + 9)).pow(2).mean() / 2).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    buffer = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, map_location=where, weights_only=True)
    again = copy.deepcopy(model.module)
    again.load_state_dict(saved["model"])
    return rounded(torch, *norms, *again.parameters())


def batch_norms_of_all(torch, device):
    """SyncBatchNorm is of GPUs: on the CPU, the layer itself and statistics that DDP gives to all."""
    dist = torch.distributed
    where = placed(torch, device)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).double().to(where)
    with torch.no_grad():
        layers[0].weight.copy_(torch.eye(4, dtype=torch.float64))
        layers[0].bias.zero_()
    ids = [where.index] if device == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(layers, device_ids=ids)
    for step in range(2):
        model(batch(torch, device, seed=step)).sum().backward()
    model.eval()
    model(batch(torch, device))
    return [*rounded(torch, layers[1].num_batches_tracked), dist.get_world_size()]


def sampler(torch, device):
    """Every index once, shuffled anew in each epoch, padded to equal parts."""
    dist = torch.distributed
    data = module(torch, "utils.data")
    items = data.TensorDataset(torch.arange(10))
    sampled = module(torch, "utils.data.distributed").DistributedSampler(items, shuffle=False)
    loader = data.DataLoader(items, batch_size=2, sampler=sampled)
    sampled.set_epoch(1)
    seen = torch.tensor([int(i) for (part,) in loader for i in part], device=placed(torch, device))
    others = [torch.empty_like(seen) for _ in range(dist.get_world_size())]
    dist.all_gather(others, seen)
    return torch.cat(others)


def uneven_inputs(torch, device):
    """Ranks run out of inputs at different times; an optimizer whose states are spread."""
    dist = torch.distributed
    where = placed(torch, device)
    ids = [where.index] if device == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(net(torch, device), device_ids=ids)
    zero = module(torch, "distributed.optim").ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.05
    )
    join = module(torch, "distributed.algorithms.join").Join
    with join([model, zero]):
        for step in range(dist.get_rank() + 1):
            zero.zero_grad()
            model(batch(torch, device, seed=step)).pow(2).mean().backward()
            zero.step()
    zero.consolidate_state_dict(to=0)
    found = sorted(zero.state_dict()["state"]) if dist.get_rank() == 0 else None
    return [rounded(torch, *model.parameters()), found]


def halves_on_their_way(torch, device):
    """A hook of the program's own around a hook of the library."""
    hooks = module(torch, "distributed.algorithms.ddp_comm_hooks.default_hooks")
    where = placed(torch, device)
    ids = [where.index] if device == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(net(torch, device).float(), device_ids=ids)
    seen = []

    def counted(state, bucket):
        seen.append(bucket.index())
        return hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, hooks.fp16_compress_wrapper(counted))
    model(batch(torch, device).float()).sum().backward()
    return [[p.grad for p in model.parameters()][-1], seen]


def outputs_of_many_kinds(torch, device):
    """A model that gives what Hugging Face's do: tensors among numbers, words and None, in dicts and lists."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net(torch, device)

        def forward(self, x):
            y = self.net(x)
            return {
                "hidden": None,
                "logits": y,
                "past": [len(x), y * 2],
                "name": "model",
                "loss": y.pow(2).mean(),
            }

    where = placed(torch, device)
    ids = [where.index] if device == "cuda" else None
    found = []
    for used in ({"find_unused_parameters": True}, {"static_graph": True}):
        model = torch.nn.parallel.DistributedDataParallel(Model(), device_ids=ids, **used)
        for step in range(2):
            model.zero_grad()
            said = model(batch(torch, device, seed=step))
            (said["loss"] + said["past"][1].sum()).backward()
        found.append(
            [
                rounded(torch, *(p.grad for p in model.parameters())),
                said["past"][0],
                said["hidden"],
                said["name"],
            ]
        )
    return found


_HELPERS = ("placed", "module", "net", "batch", "rounded")
CASES = {
    name: case
    for name, case in globals().items()
    if getattr(case, "__module__", None) == __name__ and name not in _HELPERS
}
