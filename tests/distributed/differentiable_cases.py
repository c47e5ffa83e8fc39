"""Cases of `distributed.nn.functional`: what each rank gets, and the gradient of its tensors."""

from __future__ import annotations


def numbers(torch, device, *shape, seed=0):
    """Numbers of this rank, whole, so that sums are exact in any order; requires a gradient."""
    rank = torch.distributed.get_rank()
    count = 1
    for size in shape:
        count *= size
    flat = [float((7 * i + 5 * rank + 3 * seed) % 11 - 4) for i in range(count)]
    return torch.tensor(flat, device=device, dtype=torch.float64).reshape(shape).requires_grad_()


def weighted(torch, outputs):
    """A loss in which every number of every output has a weight of its own, another on each rank."""
    rank = torch.distributed.get_rank()
    total = 0
    for place, output in enumerate(outputs):
        weights = torch.arange(output.numel(), device=output.device, dtype=output.dtype).reshape(output.shape)
        total = total + ((weights + 10 * place + 100 * rank) * output * output).sum()
    return total


def through(torch, outputs, *inputs):
    """Outputs, gradients, and gradients of the gradients' sum."""
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    first = torch.autograd.grad(weighted(torch, outputs), inputs, create_graph=True)
    second = torch.autograd.grad(weighted(torch, first), inputs)
    return [*outputs, *first, *second]


def once(torch, outputs, *inputs):
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    return [*outputs, *torch.autograd.grad(weighted(torch, outputs), inputs)]


def nn(torch):
    from importlib import import_module

    return import_module(torch.__name__ + ".distributed.nn.functional")


def all_reduce(torch, device):
    x = numbers(torch, device, 2, 3)
    return through(torch, nn(torch).all_reduce(x), x)


def all_reduce_of_columns(torch, device):
    x = numbers(torch, device, 2, 3)
    y = nn(torch).all_reduce(x.t())
    return [*through(torch, y, x), y.is_contiguous()]


def all_reduce_max(torch, device):
    x = numbers(torch, device, 5)
    return once(torch, nn(torch).all_reduce(x, torch.distributed.ReduceOp.MAX), x)


def broadcast(torch, device):
    x = numbers(torch, device, 4)
    return through(torch, nn(torch).broadcast(x, 1), x)


def reduce(torch, device):
    x = numbers(torch, device, 4)
    d = torch.distributed
    y = nn(torch).reduce(x, 1)
    found = through(torch, y * (d.get_rank() == 1), x)
    return found


def gather(torch, device):
    x = numbers(torch, device, 2, 2)
    return through(torch, nn(torch).gather(x, dst=1), x)


def scatter(torch, device):
    xs = [numbers(torch, device, 3, seed=i) for i in range(torch.distributed.get_world_size())]
    return through(torch, nn(torch).scatter(xs, src=1), *xs)


def scatter_of_other_sizes(torch, device):
    xs = [numbers(torch, device, 3 + i) for i in range(torch.distributed.get_world_size())]
    try:
        nn(torch).scatter(xs)
    except AssertionError:
        return "AssertionError"


def all_gather(torch, device):
    x = numbers(torch, device, 3, 2)
    return through(torch, nn(torch).all_gather(x), x)


def all_gather_of_columns(torch, device):
    x = numbers(torch, device, 3, 2)
    return through(torch, nn(torch).all_gather(x.t()), x)


def one_of_all_gathered(torch, device):
    """The others' gradients are missing: they count as zeros."""
    x = numbers(torch, device, 3)
    outputs = nn(torch).all_gather(x)
    return once(torch, outputs[0], x)


def reduce_scatter(torch, device):
    xs = [numbers(torch, device, 3, seed=i) for i in range(torch.distributed.get_world_size())]
    output = torch.zeros(3, device=device, dtype=torch.float64)
    y = nn(torch).reduce_scatter(output, xs)
    return [*through(torch, y, *xs), output, output.requires_grad, output is y]


def all_to_all(torch, device):
    size = torch.distributed.get_world_size()
    rank = torch.distributed.get_rank()
    xs = [numbers(torch, device, 2, seed=i) for i in range(size)]
    outputs = [torch.zeros(2, device=device, dtype=torch.float64) for _ in range(size)]
    ys = nn(torch).all_to_all(outputs, xs)
    return [*through(torch, ys, *xs), [o.detach() for o in outputs], rank]


def all_to_all_single(torch, device):
    size = torch.distributed.get_world_size()
    x = numbers(torch, device, 2 * size, 2)
    output = torch.zeros(2 * size, 2, device=device, dtype=torch.float64)
    return through(torch, nn(torch).all_to_all_single(output, x), x)


def all_to_all_single_split(torch, device):
    size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    x = numbers(torch, device, sum(range(1, size + 1)), 2)
    output = torch.zeros(size * (rank + 1), 2, device=device, dtype=torch.float64)
    sizes = list(range(1, size + 1))
    return through(torch, nn(torch).all_to_all_single(output, x, [rank + 1] * size, sizes), x)


def in_a_subgroup(torch, device):
    d = torch.distributed
    group = d.new_group([0, 2])
    if d.get_rank() == 1:
        return None
    x = numbers(torch, device, 3)
    y = nn(torch).all_reduce(x, group=group)
    z = nn(torch).broadcast(y, 0, group)
    return through(torch, z, x)


def without_gradients(torch, device):
    x = numbers(torch, device, 3).detach()
    y = nn(torch).all_reduce(x)
    return [y, x, y.requires_grad]


def names_in_the_package(torch, device):
    from importlib import import_module

    package = import_module(torch.__name__ + ".distributed.nn")
    x = numbers(torch, device, 3)
    assert torch.distributed.nn is package and package.functional is nn(torch)
    return package.all_reduce(x)


CASES = {name: case for name, case in globals().items() if callable(case) and not name.startswith("_")}
for helper in ("numbers", "weighted", "through", "once", "nn", "annotations"):
    CASES.pop(helper, None)
