"""`torch._foreach_*` beside PyTorch's: values, both forms, lists and numbers, and what is refused."""

import pytest
from support import from_torch, same, torch

import flambeau

SHAPES = ((3,), (2, 2), (), (0, 2))
ALONE = [
    n.removeprefix("_foreach_") for n in dir(torch)
    if n.startswith("_foreach_") and not n.endswith("_") and hasattr(torch, n + "_")
    and n.removeprefix("_foreach_") not in (
        "add", "sub", "mul", "div", "pow", "clamp_max", "clamp_min", "maximum", "minimum", "addcdiv", "addcmul", "lerp",
    )
]  # fmt: skip

OTHERS = {
    "a list": lambda m, y: (y,),
    "a number": lambda m, y: (2.5,),
    "numbers": lambda m, y: ([1.5, 2, 3, 4],),
}
CALLS = {
    **{
        f"{name} by {kind}": (name, args)
        for name in ("add", "sub", "mul", "div", "pow", "clamp_max", "clamp_min", "maximum", "minimum")
        for kind, args in OTHERS.items()
    },
    "add with alpha": ("add", lambda m, y: (y, {"alpha": 0.5})),
    "sub with alpha": ("sub", lambda m, y: (y, {"alpha": 2})),
    "mul by a tensor": ("mul", lambda m, y: (m.tensor(3.0),)),
    "div by a tensor": ("div", lambda m, y: (m.tensor(3.0),)),
    "addcmul": ("addcmul", lambda m, y: (y, y)),
    "addcmul by a number": ("addcmul", lambda m, y: (y, y, {"value": 0.5})),
    "addcdiv by numbers": ("addcdiv", lambda m, y: (y, y, [0.5, 1, 2, 3])),
    "addcdiv by a tensor": ("addcdiv", lambda m, y: (y, y, m.tensor([0.5, 1, 2, 3]))),
    "lerp by a number": ("lerp", lambda m, y: (y, 0.25)),
    "lerp by lists": ("lerp", lambda m, y: (y, y)),
    "lerp by numbers": ("lerp", lambda m, y: (y, [0.1, 0.2, 0.3, 0.4])),
}


def both(seed: int) -> tuple[list, list]:
    torch.manual_seed(seed)
    theirs = [torch.rand(s) + 0.25 for s in SHAPES]
    return theirs, [from_torch(t) for t in theirs]


def compare(name: str, args) -> None:
    for end in ("", "_"):
        results = []
        for room, x, y in zip((torch, flambeau), both(0), both(1), strict=True):
            *given, named = [*args(room, y), {}]
            if given and isinstance(given[-1], dict):
                named = given.pop()
            found = getattr(room, f"_foreach_{name}{end}")(x, *given, **named)
            assert (found is x) == bool(end) and isinstance(found, list if end else tuple)
            results.append(found)
        for theirs, ours in zip(*results, strict=True):
            same(ours, theirs, 4)


@pytest.mark.parametrize("name", ALONE)
def test_of_one_list(name):
    compare(name, lambda m, y: ())


@pytest.mark.parametrize("call", CALLS)
def test_of_several(call):
    compare(*CALLS[call])


def test_norms_copies_and_maxima():
    for run in (
        lambda m, x, y: m._foreach_norm(x),
        lambda m, x, y: m._foreach_norm(x, 1),
        lambda m, x, y: m._foreach_norm(x, ord=3, dtype=m.float64),
        lambda m, x, y: m._foreach_max(x[:3]),
        lambda m, x, y: m._foreach_clone(x),
        lambda m, x, y: (m._foreach_copy_(x, y), x)[1],
        lambda m, x, y: (m._foreach_zero_(x), x)[1],
    ):
        theirs, ours = (run(m, x, y) for m, x, y in zip((torch, flambeau), both(0), both(1), strict=True))
        for a, b in zip(theirs, ours, strict=True):
            same(b, a, 4)


def test_gradients_and_a_virtual_gpu():
    with flambeau.virtual(1):
        x = [flambeau.ones(2, device="cuda", requires_grad=True), flambeau.ones((), device="cuda")]
        sum(t.sum() for t in flambeau._foreach_mul(x, [2, 3])).backward()
        assert x[0].grad.tolist() == [2, 2]
        with flambeau.no_grad():
            flambeau._foreach_lerp_(x, [t * 3 for t in x], 0.5)
        assert [t.tolist() for t in x] == [[2, 2], 2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m, x: m._foreach_add([], 1),
        lambda m, x: m._foreach_add(x, [1.0]),
        lambda m, x: m._foreach_add_(x, x[:2]),
        lambda m, x: m._foreach_mul(x, m.ones(2)),
        lambda m, x: m._foreach_add(x[0], 1),
        lambda m, x: m._foreach_copy_(x, x[::-1]),
        lambda m, x: m._foreach_nothing(x),
    ],
)
def test_what_is_refused(wrong):
    theirs, ours = both(0)
    with pytest.raises(Exception) as wanted:
        wrong(torch, theirs)
    with pytest.raises(wanted.type) as got:
        wrong(flambeau, ours)
    if wanted.type is RuntimeError:
        assert str(got.value) == str(wanted.value)
