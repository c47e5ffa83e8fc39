"""Cases of `_coalescing_manager` on three ranks."""

from __future__ import annotations


def tensors(torch, device, *shapes):
    rank = torch.distributed.get_rank()
    return [torch.full(shape, 10.0**rank * (place + 1), device=device) for place, shape in enumerate(shapes)]


def said(call):
    try:
        return call()
    except Exception as error:
        return [type(error).__name__, str(error)]


def all_reduce(torch, device):
    d = torch.distributed
    a, b = tensors(torch, device, (2,), (3, 2))
    with d._coalescing_manager() as cm:
        found = [d.all_reduce(a), d.all_reduce(b)]
        before = a.tolist()
    return [a, b, found, before, len(cm.works)]


def all_reduce_max(torch, device):
    d = torch.distributed
    a, b = tensors(torch, device, (2,), (3,))
    with d._coalescing_manager():
        d.all_reduce(a, d.ReduceOp.MAX)
        d.all_reduce(b, d.ReduceOp.MAX)
    return [a, b]


def later(torch, device):
    d = torch.distributed
    a, b = tensors(torch, device, (2,), (3,))
    with d._coalescing_manager(async_ops=True) as cm:
        work = d.all_reduce(a, async_op=True)
        d.all_reduce(b)
    illegal = [said(lambda: work.wait()), said(lambda: work.synchronize())]
    cm.wait()
    return [a, b, illegal, len(cm.works), type(cm).__name__]


def all_gather(torch, device):
    d = torch.distributed
    a, b = tensors(torch, device, (2,), (1, 2))
    x, y = torch.zeros(6, device=device), torch.zeros(3, 2, device=device)
    with d._coalescing_manager(async_ops=True) as cm:
        d.all_gather_single(x, a)
        d.all_gather_into_tensor(y, b)
    cm.wait()
    return [x, y]


def reduce_scatter(torch, device):
    d = torch.distributed
    a, b = tensors(torch, device, (3,), (6, 1))
    x, y = torch.zeros(1, device=device), torch.zeros(2, 1, device=device)
    with d._coalescing_manager():
        d.reduce_scatter_single(x, a)
        d.reduce_scatter_tensor(y, b)
    return [x, y]


def in_a_group(torch, device):
    d = torch.distributed
    group = d.new_group([0, 2])
    a, b = tensors(torch, device, (2,), (2,))
    if d.get_rank() == 1:
        d.all_reduce(b)
        return b
    with d._coalescing_manager(group=group):
        d.all_reduce(a, group=group)
        d.all_reduce(b)
        now = b.tolist()
    return [a, now]


def nothing(torch, device):
    with torch.distributed._coalescing_manager() as cm:
        pass
    return len(cm.works)


def refused(torch, device):
    d = torch.distributed
    (a,) = tensors(torch, device, (2,))

    def twice():
        with d._coalescing_manager():
            d.all_reduce(a)
            with d._coalescing_manager():
                pass

    return said(twice)[:1]


def old_names(torch, device):
    """The functions that do the same for a list."""
    d = torch.distributed
    a, b = tensors(torch, device, (2,), (3,))
    d.all_reduce_coalesced([a, b])
    c, e = tensors(torch, device, (2,), (3,))
    d.all_reduce_coalesced([c, e], async_op=True).wait()
    lists = [[torch.zeros(2, device=device), torch.zeros(3, device=device)] for _ in range(3)]
    d.all_gather_coalesced(lists, tensors(torch, device, (2,), (3,)))
    return [a, b, c, e, lists]


def names_of_groups(torch, device):
    c10d = torch.distributed.distributed_c10d
    group = torch.distributed.new_group([0, 1])
    outside = [c10d._rank_not_in_group(g) for g in (None, torch.distributed.group.WORLD, group)]
    name = None if outside[2] else c10d._get_process_group_name(group) == group.group_name
    return [outside, name, torch.distributed.GroupName("3")]


CASES = {
    name: case
    for name, case in globals().items()
    if getattr(case, "__module__", None) == __name__ and name not in ("tensors", "said")
}
