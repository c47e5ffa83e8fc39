"""DistributedDataParallel beside PyTorch's, as the only rank: what it refuses, and how it puts gradients together."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import from_torch, torch

import flambeau

LIBRARIES = (torch, flambeau)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The only rank of a group, in both libraries."""
    for library in LIBRARIES:
        dist = library.distributed
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    for library in LIBRARIES:
        library.distributed.destroy_process_group()


def two(lib: Any) -> Any:
    """Two layers: the first, or, if asked for, the second, the sum of both, or both outputs."""

    class Two(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = lib.nn.Linear(2, 2), lib.nn.Linear(2, 2)

        def forward(self, x: Any, which: str = "a") -> Any:
            if which == "both":
                return self.a(x), [{"b": self.b(x)}]
            if which == "sum":
                return self.a(x) + self.b(x)
            return self.b(x) if which == "b" else self.a(x)

    return Two()


def ddp(lib: Any, module: Any, **options: Any) -> Any:
    return lib.nn.parallel.DistributedDataParallel(module, **options)


def steps(lib: Any, whiches: str, **options: Any) -> None:
    net = ddp(lib, two(lib), **options)
    for which in whiches.split():
        net(lib.ones(1, 2), which).sum().backward()


def retained(lib: Any) -> None:
    """Two backwards of one forward."""
    net = ddp(lib, two(lib))
    out = net(lib.ones(1, 2)).sum()
    out.backward(retain_graph=True)
    out.backward()


def outside(lib: Any) -> None:
    """A parameter that counts as unused is used in the loss."""
    net = ddp(lib, two(lib), find_unused_parameters=True)
    (net(lib.ones(1, 2)).sum() + net.module.b(lib.ones(1, 2)).sum()).backward()


def late(lib: Any) -> None:
    net = ddp(lib, two(lib))
    net(lib.ones(1, 2), "sum").sum().backward()
    net._set_static_graph()


def hooked_twice(lib: Any) -> None:
    net = ddp(lib, two(lib))
    for _ in range(2):
        net.register_comm_hook(None, lambda state, bucket: None)


def built_in_twice(lib: Any) -> None:
    net = ddp(lib, two(lib))
    for _ in range(2):
        net._register_builtin_comm_hook(lib.distributed.BuiltinCommHookType.FP16_COMPRESS)


def annotated(lib: Any) -> None:
    def hook(state: Any, bucket: Any) -> Any: ...

    hook.__annotations__["bucket"] = int
    ddp(lib, two(lib)).register_comm_hook(None, hook)


def answered(lib: Any) -> None:
    def hook(state: Any, bucket: Any) -> Any: ...

    hook.__annotations__ = {"return": int}
    ddp(lib, two(lib)).register_comm_hook(None, hook)


REFUSED = {
    "unused": lambda lib: steps(lib, "a a"),
    "static, unused then": lambda lib: steps(lib, "sum sum a a", static_graph=True),
    "static, used then": lambda lib: steps(lib, "a a sum sum", static_graph=True),
    "retained": retained,
    "outside": outside,
    "late": late,
    "hooked twice": hooked_twice,
    "built in twice": built_in_twice,
    "annotated": annotated,
    "answered": answered,
    "no function": lambda lib: ddp(lib, two(lib)).register_comm_hook(None, 3),
    "no parameters": lambda lib: ddp(lib, lib.nn.ReLU()),
    "no gradients": lambda lib: ddp(lib, two(lib).requires_grad_(False)),
    "a device of a CPU module": lambda lib: ddp(lib, two(lib), device_ids=[0]),
    "two devices": lambda lib: ddp(lib, two(lib), device_ids=[0, 1]),
    "lazy": lambda lib: ddp(lib, lib.nn.LazyLinear(2)),
    "batch norm of all": lambda lib: ddp(
        lib, lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.SyncBatchNorm(2))
    ),
    "delayed alone": lambda lib: ddp(lib, two(lib), delay_all_reduce_named_params=[]),
    "no uneven inputs": lambda lib: import_module(f"{lib.__name__}.distributed.algorithms.join").Join([]),
    "power too early": lambda lib: _power(lib).PowerSGDState(None, start_powerSGD_iter=1),
}


def _power(lib: Any) -> Any:
    return import_module(f"{lib.__name__}.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_in_pytorchs_words(case: str) -> None:
    errors = []
    for lib in LIBRARIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(Exception) as raised:
                REFUSED[case](lib)
        errors.append((type(raised.value).__name__, str(raised.value)))
    theirs, ours = errors
    if case in ("retained", "outside"):  # whichever comes first
        theirs, ours = [
            (kind, text.replace("bias", "weight").replace("index 1", "index 0").replace("index 3", "index 2"))
            for kind, text in errors
        ]
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"broadcast_buffers": False},
        {"broadcast_buffers": False, "forward_sync_buffers": True},
        {"check_reduction": True},
        {"static_graph": True, "find_unused_parameters": True},
    ],
    ids=str,
)
def test_warnings_are_pytorchs(options: dict[str, bool]) -> None:
    told = []
    for lib in LIBRARIES:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            ddp(lib, two(lib), **options)
        told.append([(w.category, str(w.message)) for w in heard])
    assert told[0] == told[1]


SHAPES = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.lists(st.integers(1, 2000), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_buckets_hold_the_same_tensors(sizes: list[int], limits: list[int], chance: Any) -> None:
    kinds = [chance.choice(["float32", "float64", "float16"]) for _ in sizes]
    indices = list(range(len(sizes)))
    chance.shuffle(indices)
    for order in ([], indices):
        got = []
        for lib in LIBRARIES:
            tensors = [lib.empty(n, dtype=getattr(lib, k)) for n, k in zip(sizes, kinds, strict=True)]
            found = lib.distributed._compute_bucket_assignment_by_size(tensors, limits, [], order)
            got.append(sorted(zip(*found, strict=True)) if order else list(zip(*found, strict=True)))
        assert [tuple(map(str, x)) for x in got[1]] == [tuple(map(str, x)) for x in got[0]]


def net(lib: Any, state: Any = None) -> Any:
    n = lib.nn
    made = n.Sequential(
        n.Linear(6, 40), n.GELU(), n.LayerNorm(40), n.Linear(40, 40), n.Tanh(), n.Linear(40, 3)
    )
    made.double()
    if state is not None:
        made.load_state_dict({name: from_torch(t) for name, t in state.items()})
    return made


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.002}, {"static_graph": True}, {"find_unused_parameters": True}],
    ids=str,
)  # fmt: skip
def test_buckets_are_rebuilt_and_gradients_are_those_of_pytorch(options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    state = net(torch).state_dict()
    results = []
    for lib in LIBRARIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if lib is torch:
                made = net(torch)
                made.load_state_dict(copy.deepcopy(state))
            else:
                made = net(flambeau, state)
            wrapped = ddp(lib, made, **options)
            optimizer = lib.optim.SGD(wrapped.parameters(), lr=0.05)
            x = lib.linspace(-1, 1, 60, dtype=lib.float64).view(10, 6)
            for _ in range(4):
                optimizer.zero_grad()
                wrapped(x).square().mean().backward()
                optimizer.step()
            data = wrapped._get_ddp_logging_data()
        results.append(
            (
                [p.detach().numpy() for p in wrapped.parameters()],
                [p.grad.numpy() for p in wrapped.parameters()],
            )
        )
        results[-1] += (
            list(wrapped.state_dict()),
            data["bucket_sizes"],
            repr(wrapped),
            wrapped.module is made,
        )
    theirs, ours = results
    for mine, other in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        assert abs(mine - other).max() < 1e-12
    assert ours[2] == theirs[2]
    assert ours[4:] == theirs[4:]


def test_it_pickles_and_goes_on() -> None:
    made = ddp(flambeau, flambeau.nn.Linear(3, 2))
    again = pickle.loads(pickle.dumps(made))
    for each in (made, again):
        each(flambeau.ones(1, 3)).sum().backward()
    assert again.module.weight.grad.equal(made.module.weight.grad)
    group = flambeau.distributed.new_group([0])
    other = ddp(flambeau, flambeau.nn.Linear(3, 2), process_group=group)
    with pytest.raises(
        RuntimeError, match="DDP Pickling/Unpickling are only supported when using DDP with the default"
    ):
        pickle.dumps(other)
