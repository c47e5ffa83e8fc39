"""Cases of `distributed._functional_collectives`: values, gradients, gradients of gradients, errors, on three ranks."""

from __future__ import annotations

from importlib import import_module

from differentiable_cases import numbers, once, through


def collectives(torch):
    return import_module(torch.__name__ + ".distributed._functional_collectives")


def plain(torch, *tensors):
    """PyTorch's tensors that wait are waited for."""
    return [collectives(torch).wait_tensor(tensor) for tensor in tensors]


def world(torch):
    return torch.distributed.group.WORLD


def all_reduce(torch, device):
    x = numbers(torch, device, 2, 3)
    return through(torch, plain(torch, collectives(torch).all_reduce(x, "sum", world(torch))), x)


def all_reduce_of_columns(torch, device):
    x = numbers(torch, device, 2, 3)
    (y,) = plain(torch, collectives(torch).all_reduce(x.t(), "SUM", world(torch)))
    return [*through(torch, y, x), y.is_contiguous()]


def other_operations(torch, device):
    x = numbers(torch, device, 4).detach()
    f = collectives(torch).all_reduce
    return plain(torch, *[f(x, op, world(torch)) for op in ("max", "min", "product", "Max")], x)


def coalesced(torch, device):
    x, y = numbers(torch, device, 3), numbers(torch, device, 3, 2, seed=1)
    f = collectives(torch)
    one = f.all_reduce_coalesced([x, y], "sum", world(torch))
    two = f.all_gather_single_coalesced([x, y], world(torch))
    three = f.reduce_scatter_single_coalesced([x, y], "sum", [0, 0], world(torch))
    return [once(torch, [t * 1 for t in found], x, y) for found in (one, two, three)]


def all_gather(torch, device):
    x = numbers(torch, device, 2, 3)
    return through(torch, plain(torch, collectives(torch).all_gather_single(x, 0, world(torch))), x)


def all_gather_columns(torch, device):
    x = numbers(torch, device, 2, 3)
    found = collectives(torch).all_gather_single_autograd(x, 1, world(torch))
    return through(torch, plain(torch, found), x)


def all_gather_transposed(torch, device):
    x = numbers(torch, device, 2, 3)
    return through(torch, plain(torch, collectives(torch).all_gather_tensor(x.t(), 0, world(torch))), x)


def reduce_scatter(torch, device):
    x = numbers(torch, device, 6, 2)
    return through(
        torch, plain(torch, collectives(torch).reduce_scatter_single(x, "sum", 0, world(torch))), x
    )


def reduce_scatter_columns(torch, device):
    x = numbers(torch, device, 2, 6)
    return through(
        torch, plain(torch, collectives(torch).reduce_scatter_tensor(x, "sum", 1, world(torch))), x
    )


def all_to_all(torch, device):
    x = numbers(torch, device, 6, 2)
    return through(torch, plain(torch, collectives(torch).all_to_all_single(x, None, None, world(torch))), x)


def all_to_all_split(torch, device):
    size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    x = numbers(torch, device, sum(range(1, size + 1)), 2)
    found = collectives(torch).all_to_all_single_autograd(
        x, [rank + 1] * size, list(range(1, size + 1)), world(torch)
    )
    return through(torch, plain(torch, found), x)


def permuted(torch, device):
    x = numbers(torch, device, 4)
    return once(torch, plain(torch, collectives(torch).permute_tensor(x, [1, 2, 0], world(torch))), x)


def broadcast(torch, device):
    x = numbers(torch, device, 4).detach()
    return plain(torch, collectives(torch).broadcast(x, 1, world(torch)), x)


def groups(torch, device):
    d = torch.distributed
    x = numbers(torch, device, 2)
    row = d.init_device_mesh("cpu", (3,))
    square = d.init_device_mesh("cpu", (3, 1))
    named = [row, (square, 0), (square, 1), "0", [0, 1, 2], world(torch).group_name]
    f = collectives(torch).all_reduce
    return [once(torch, plain(torch, f(x, "sum", group)), x) for group in named]


def refused(torch, device):
    f, w = collectives(torch), world(torch)
    x, square = numbers(torch, device, 4), torch.distributed.init_device_mesh("cpu", (3, 1))
    calls = [
        lambda: f.all_reduce(x, "foo", w), lambda: f.all_reduce(x, "premul_sum", w), lambda: f.all_reduce(x, "prod", w),
        lambda: f.all_reduce(x, "sum", 3), lambda: f.all_reduce(x, "sum", "zzz"), lambda: f.all_reduce(x, "sum", (1, 2)),
        lambda: f.all_reduce(x, "sum", square), lambda: f.all_to_all_single(x, [4], None, w),
        lambda: f.all_to_all_single(x, [4.0], [4.0], w), lambda: f.reduce_scatter_single(x, "sum", 0, w),
        lambda: f.reduce_scatter_single_coalesced([x], "sum", [], w),
        lambda: f.reduce_scatter_single_coalesced([x], "sum", [0], w),
        lambda: torch.autograd.grad(f.all_reduce(x, "max", w).sum(), x),
        lambda: torch.autograd.grad(f.all_reduce_coalesced([x], "max", w)[0].sum(), x),
        lambda: torch.autograd.grad(f.reduce_scatter_single(x[:3], "max", 0, w).sum(), x),
    ]  # fmt: skip
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except Exception as error:
            text = str(error).replace("flambeau", "torch").split("\n")[0]
            found.append([type(error).__name__, text])
    try:
        f.all_reduce(x, "sum", [0, 1])
    except ValueError:
        found.append("ValueError")
    return found


def without_gradients(torch, device):
    x = numbers(torch, device, 3).detach()
    (y,) = plain(torch, collectives(torch).all_reduce(x, "sum", world(torch)))
    return [y, x, y.requires_grad]


_HELPERS = ("collectives", "plain", "world")
CASES = {
    name: case
    for name, case in globals().items()
    if getattr(case, "__module__", None) == __name__ and name not in _HELPERS
}
