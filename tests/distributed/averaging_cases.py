"""Cases of model averaging on four ranks: what parameters become, step by step."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from importlib import import_module


def module(torch, name):
    return import_module(f"{torch.__name__}.distributed.algorithms.model_averaging.{name}")


def optimizers(torch):
    return import_module(f"{torch.__name__}.distributed.optim")


def parameters(torch, device):
    """The second has no gradient: it stays."""
    rank = torch.distributed.get_rank()
    made = [
        torch.nn.Parameter(torch.full(shape, 4.0 ** (rank + place), device=device))
        for place, shape in enumerate([(2,), (3,), (2, 2)])
    ]
    for place in (0, 2):
        made[place].grad = torch.ones_like(made[place])
    return made


def told(torch, params):
    return [p.detach().clone() for p in params]


def stepped(torch, params, averager, count):
    found = []
    for _ in range(count):
        averager.average_parameters(params)
        found.append([averager.step, told(torch, params)])
        with torch.no_grad():
            for p in params:
                p += torch.distributed.get_rank() + 1
    return found


def periodic(torch, device):
    params = parameters(torch, device)
    return stepped(torch, params, module(torch, "averagers").PeriodicModelAverager(3, warmup_steps=2), 7)


def in_a_group(torch, device):
    rank = torch.distributed.get_rank()
    for ranks in ([0, 1], [2, 3]):
        group = torch.distributed.new_group(ranks)
        if rank in ranks:
            mine = group
    params = parameters(torch, device)
    return stepped(torch, params, module(torch, "averagers").PeriodicModelAverager(2, process_group=mine), 3)


def hierarchical(torch, device):
    make = module(torch, "hierarchical_model_averager").HierarchicalModelAverager
    return stepped(torch, parameters(torch, device), make(OrderedDict([(2, 2), (4, 4)]), warmup_steps=1), 9)


def outside(torch, device):
    d = torch.distributed
    group = d.new_group([0, 1])
    params = parameters(torch, device)
    module(torch, "utils").average_parameters(iter(params), group)
    return told(torch, params)


def of_two_dtypes(torch, device):
    params = parameters(torch, device)
    with torch.no_grad():
        params[0] = torch.nn.Parameter(params[0].double())
    module(torch, "utils").average_parameters(iter(params), None)
    return [*told(torch, params), params[0].dtype]


def optimizer(torch, device):
    """Averaged every second step; saved and loaded."""
    params = parameters(torch, device)
    make = module(torch, "averagers").PeriodicModelAverager
    local = torch.optim.SGD(params, lr=0.5, momentum=0.5)
    whole = optimizers(torch).PostLocalSGDOptimizer(optim=local, averager=make(period=2, warmup_steps=1))
    found = []
    for step in range(5):
        whole.zero_grad()
        for p in params:
            p.grad = torch.full_like(p, float(torch.distributed.get_rank() + step))
        whole.step()
        found.append([whole.averager.step, told(torch, params)])
    state = whole.state_dict()
    whole.averager.step = 77
    whole.load_state_dict(state)
    found.append([whole.averager.step, repr(whole), len(whole.state), sorted(state)])
    del state["step"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        whole.load_state_dict(state)
    found.append([whole.averager.step, [str(w.message) for w in seen]])
    whole.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1, device=device))]})
    return [*found, len(whole.optim.param_groups), isinstance(whole, torch.optim.Optimizer)]


def after_ddp(torch, device):
    """PyTorch's recipe: gradients of all ranks for two steps, then of the subgroup, and means of parameters."""
    d = torch.distributed
    hooks = import_module(f"{torch.__name__}.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook")
    net = torch.nn.Linear(2, 1, bias=False).to(device)
    with torch.no_grad():
        net.weight.fill_(1.0)
    model = torch.nn.parallel.DistributedDataParallel(net)
    subgroup, _ = d.new_subgroups(2)
    model.register_comm_hook(hooks.PostLocalSGDState(None, subgroup, 2), hooks.post_localSGD_hook)
    averager = module(torch, "averagers").PeriodicModelAverager(period=2, warmup_steps=2)
    steps = optimizers(torch).PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.25), averager)
    found = []
    for step in range(5):
        steps.zero_grad()
        model(torch.full((1, 2), float(2 ** d.get_rank() + step), device=device)).sum().backward()
        steps.step()
        found.append(net.weight.detach().clone())
    return found


def refused(torch, device):
    periodic = module(torch, "averagers").PeriodicModelAverager
    layered = module(torch, "hierarchical_model_averager").HierarchicalModelAverager
    find = module(torch, "utils").get_params_to_average
    found = []
    for call in (
        lambda: periodic(0), lambda: periodic(2, -1), lambda: layered(), lambda: layered({0: 4}), lambda: layered({2: 2}),
        lambda: layered({2: 4}, -1), lambda: find([3]), lambda: module(torch, "averagers").ModelAverager(),
        lambda: module(torch, "utils").average_parameters(iter([]), None),
    ):  # fmt: skip
        try:
            call()
        except Exception as error:
            found.append([type(error).__name__, str(error)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        periodic(1), layered({1: 4})
    return [found, [str(w.message) for w in seen]]


_HELPERS = ("module", "optimizers", "parameters", "told", "stepped")
CASES = {
    name: case
    for name, case in globals().items()
    if getattr(case, "__module__", None) == __name__ and name not in _HELPERS
}
