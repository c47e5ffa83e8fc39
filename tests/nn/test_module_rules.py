"""What `Module` promises, against PyTorch: registration, names, attributes, state, moves, text."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import pytest
from nn_kit import agree, fails
from support import from_torch, same, torch

import flambeau
from flambeau import nn


def small(t: Any) -> Any:
    """A module with a parameter, two buffers (one not persistent), and submodules, two of them the same."""

    class Small(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = t.nn.Parameter(t.ones(2))
            self.register_buffer("mean", t.zeros(2))
            self.register_buffer("scratch", t.zeros(3), persistent=False)
            self.register_parameter("absent", None)
            self.first = t.nn.Linear(2, 2)
            self.rest = t.nn.Sequential(t.nn.ReLU(), t.nn.Linear(2, 3, bias=False))
            self.again = self.first
            self.none = None

        def forward(self, x: Any) -> Any:
            return self.rest(self.first(x) * self.scale + self.mean)

    return Small()


# -- names and order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("remove", (True, False))
@pytest.mark.parametrize("recurse", (True, False))
def test_parameters_and_buffers_come_in_order(remove: bool, recurse: bool) -> None:
    def names(t: Any) -> Any:
        m = small(t)
        return [
            [n for n, _ in m.named_parameters("p", recurse, remove)],
            [n for n, _ in m.named_buffers("b", recurse, remove)],
            [p.shape for p in m.parameters(recurse)],
            [b.shape for b in m.buffers(recurse)],
            [n for n, _ in m.named_modules(prefix="m", remove_duplicate=remove)],
        ]

    agree(names)


def test_children_and_modules() -> None:
    agree(lambda t: [n for n, _ in small(t).named_children()])
    agree(lambda t: list(small(t).children()))
    agree(lambda t: [type(m).__name__ for m in small(t).modules()])
    agree(lambda t: small(t))
    agree(
        lambda t: [
            n for n in dir(small(t)) if n in ("scale", "mean", "first", "training", "_modules", "forward")
        ]
    )
    agree(lambda t: [n for n in dir(t.nn.Sequential(t.nn.ReLU())) if n.isdigit()])


@pytest.mark.parametrize("path", ("", "rest", "rest.1", "rest.7", "scale", "first.weight", "nothing.1"))
def test_by_path(path: str) -> None:
    for get in ("get_submodule", "get_parameter", "get_buffer"):
        agree(lambda t, get=get: getattr(small(t), get)(path))
    agree(lambda t: small(t).get_buffer("mean"))
    agree(lambda t: small(t).get_parameter("rest.1.weight").shape)


@pytest.mark.parametrize("path", ("", "rest.1", "rest.5", "new", "scale", "nothing.1", "rest.0.deep"))
@pytest.mark.parametrize("strict", (True, False))
def test_set_submodule(path: str, strict: bool) -> None:
    def change(t: Any) -> Any:
        m = small(t)
        m.set_submodule(path, t.nn.Tanh(), strict)
        return m

    agree(change)


# -- registration and attributes --------------------------------------------------------------------------

WRONG = (
    lambda t, m: m.register_buffer("a.b", t.ones(1)),
    lambda t, m: m.register_buffer("", t.ones(1)),
    lambda t, m: m.register_buffer(3, t.ones(1)),
    lambda t, m: m.register_buffer("training", t.ones(1)),
    lambda t, m: m.register_buffer("b", 3),
    lambda t, m: m.register_parameter("a.b", t.nn.Parameter(t.ones(1))),
    lambda t, m: m.register_parameter("", t.nn.Parameter(t.ones(1))),
    lambda t, m: m.register_parameter(3, t.nn.Parameter(t.ones(1))),
    lambda t, m: m.register_parameter("mean", t.nn.Parameter(t.ones(1))),
    lambda t, m: m.register_parameter("p", t.ones(1)),
    lambda t, m: m.add_module("a.b", t.nn.ReLU()),
    lambda t, m: m.add_module("", t.nn.ReLU()),
    lambda t, m: m.add_module(3, t.nn.ReLU()),
    lambda t, m: m.add_module("scale", t.nn.ReLU()),
    lambda t, m: m.add_module("x", 3),
    lambda t, m: setattr(m, "scale", t.ones(2)),
    lambda t, m: setattr(m, "scale", 3),
    lambda t, m: setattr(m, "first", 3),
    lambda t, m: setattr(m, "mean", 3),
    lambda t, m: m.missing,
    lambda t, m: delattr(m, "missing"),
    lambda t, m: m(t.ones(1), nothing=1),
    lambda t, m: t.nn.Module()(1),
    lambda t, m: t.nn.Module(1),
    lambda t, m: t.nn.Module(a=1),
    lambda t, m: t.nn.ReLU6()(1, 2),
    lambda t, m: m.train("yes"),
    lambda t, m: m.to(t.int64),
    lambda t, m: m.load_state_dict([1]),
    lambda t, m: m.get_extra_state,
)


@pytest.mark.parametrize("index", range(len(WRONG) - 1))
def test_what_is_wrong_raises_pytorchs_error(index: int) -> None:
    if index in (21, 25):  # Python's own words for wrong arguments name a function's place
        for t in (torch, flambeau):
            with pytest.raises(TypeError):
                WRONG[index](t, small(t))
        return
    fails(lambda t: WRONG[index](t, small(t)))


@pytest.mark.parametrize("value", ("parameter", "module", "tensor"))
def test_a_module_must_be_begun_before_it_is_filled(value: str) -> None:
    def fill(t: Any) -> None:
        class Early(t.nn.Module):
            def __init__(self) -> None:
                self.x = {"parameter": t.nn.Parameter(t.ones(1)), "module": t.nn.ReLU(), "tensor": t.ones(1)}[
                    value
                ]

        Early()

    if value == "tensor":
        agree(fill)
    else:
        fails(fill)


def test_assignment_moves_a_name_between_kinds() -> None:
    def play(t: Any) -> Any:
        m = small(t)
        m.mean = t.ones(2)  # stays a buffer
        m.scale = None  # stays a parameter
        m.first = None
        m.plain = t.ones(1)  # an attribute
        m.plain = t.nn.Parameter(t.ones(1))
        m.mean = t.nn.Parameter(t.zeros(2))
        m.fresh = t.nn.Buffer(t.ones(1), persistent=False)
        m.fresh = t.zeros(2)
        m.scratch = t.nn.ReLU()
        del m.rest
        return [
            m,
            m.state_dict(),
            list(m._buffers),
            list(m._parameters),
            sorted(m._non_persistent_buffers_set),
        ]

    agree(play)


def test_non_leaf_parameters_are_refused() -> None:
    def play(t: Any) -> None:
        m = t.nn.Module()
        p = t.nn.Parameter(t.ones(2))
        q = p * 2
        m.register_parameter("q", q)

    fails(play)


def test_parameters_are_tensors_that_operators_make_plain() -> None:
    p = nn.Parameter(flambeau.ones(2))
    assert type(p) is nn.Parameter and isinstance(p, flambeau.Tensor) and p.is_leaf and p.requires_grad
    for made in (p + 1, p * p, p.detach(), p.data, p.clone(), p[0], p.view(2)):
        assert type(made) is flambeau.Tensor
    shared = flambeau.zeros(2)
    q = nn.Parameter(shared, requires_grad=False)
    shared += 3
    assert q.tolist() == [3, 3] and not q.requires_grad
    assert hash(p) == hash(p) and p in {p}
    agree(lambda t: repr(t.nn.Parameter(t.ones(2))))
    agree(lambda t: repr(t.nn.Parameter(t.ones(2), False)))
    agree(lambda t: t.nn.Parameter().shape)
    fails(lambda t: t.nn.Parameter(t.ones(2, dtype=t.int64)))
    agree(lambda t: isinstance(t.nn.Buffer(t.ones(2)), t.nn.Buffer))
    agree(lambda t: isinstance(t.ones(2), t.nn.Buffer))
    agree(lambda t: isinstance(t.ones(2), t.nn.Parameter))


def test_copies_and_pickles_of_parameters() -> None:
    p = nn.Parameter(flambeau.ones(2), requires_grad=False)
    for again in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert type(again) is nn.Parameter and not again.requires_grad and again.data_ptr() != p.data_ptr()
    shared = nn.Sequential(nn.Linear(2, 2))
    shared.append(shared[0])
    for again in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        assert again[0] is again[1] and again[0] is not shared[0]


# -- state ------------------------------------------------------------------------------------------------


def test_states_are_shared_not_copied() -> None:
    m = small(flambeau)
    state = m.state_dict()
    assert not state["scale"].requires_grad and m.state_dict(keep_vars=True)["scale"] is m.scale
    m.scale.data.fill_(5)
    assert state["scale"].tolist() == [5, 5]


def spoiled(t: Any, **changes: Any) -> Any:
    state = small(t).state_dict()
    for name in changes.get("without", ()):
        del state[name]
    for name, shape in changes.get("having", {}).items():
        state[name] = t.ones(shape)
    if "wrong" in changes:
        state[changes["wrong"]] = "no tensor"
    return state


@pytest.mark.parametrize(
    "changes",
    (
        {}, {"without": ("scale", "rest.1.weight")}, {"having": {"extra": 2, "rest.1.more": 3, "other.x": 1}},
        {"having": {"scale": 3, "first.weight": (2, 3)}}, {"having": {"x": 1}, "without": ("mean",)},
        {"wrong": "scale"}, {"having": {"absent": 2}}, {"having": {"scratch": 3}}, {"having": {"scale": ()}},
    ),
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("strict", (True, False))
@pytest.mark.parametrize("assign", (True, False))
def test_load_state_dict(changes: dict[str, Any], strict: bool, assign: bool) -> None:
    def load(t: Any) -> Any:
        m = small(t)
        keys = m.load_state_dict(spoiled(t, **changes), strict=strict, assign=assign)
        return [repr(keys), keys.missing_keys, keys.unexpected_keys, m.state_dict()]

    agree(load)


def test_what_can_be_loaded_is_loaded_before_the_error() -> None:
    m = small(flambeau)
    with pytest.raises(RuntimeError, match=r"size mismatch for first\.bias"):
        m.load_state_dict(spoiled(flambeau, having={"scale": 2, "first.bias": 7, "mean": 2}))
    assert m.mean.tolist() == [1, 1]


def test_assign_makes_the_tensors_the_parameters() -> None:
    def assign(t: Any) -> Any:
        m = t.nn.Linear(2, 1)
        m.bias.requires_grad_(False)
        weight, bias = t.ones(1, 2, dtype=t.float64), t.nn.Parameter(t.ones(1))
        m.load_state_dict({"weight": weight, "bias": bias}, assign=True)
        return [
            m.weight.dtype, m.weight.requires_grad, m.weight.data_ptr() == weight.data_ptr(), m.bias is bias,
            m.bias.requires_grad, type(m.weight).__name__,
        ]  # fmt: skip

    agree(assign)


def test_states_of_pytorch_load() -> None:
    theirs = small(torch)
    ours = small(flambeau)
    ours.load_state_dict({k: from_torch(v) for k, v in theirs.state_dict().items()})
    x = torch.arange(6.0).reshape(3, 2)
    same(ours(from_torch(x)).detach(), theirs(x).detach(), ulps=4)


def test_extra_state_and_hooks_of_states() -> None:
    def play(t: Any) -> Any:
        log = []

        class Extra(t.nn.Linear):
            note = "made"

            def get_extra_state(self) -> Any:
                return {"note": self.note}

            def set_extra_state(self, state: Any) -> None:
                self.note = state["note"]

        m = t.nn.Sequential(Extra(1, 1), t.nn.Linear(1, 1))
        m[0].register_state_dict_pre_hook(lambda mod, prefix, keep: log.append(("pre", prefix, keep)))
        m[0].register_state_dict_post_hook(
            lambda mod, state, prefix, meta: log.append(("post", prefix, meta))
        )
        m[1]._register_state_dict_hook(
            lambda mod, state, prefix, meta: state.update({prefix + "note": t.ones(1)}) or state
        )
        m[0].note = "changed"
        state = m.state_dict()
        n = t.nn.Sequential(Extra(1, 1), t.nn.Linear(1, 1))
        n[1].register_load_state_dict_pre_hook(
            lambda mod, state, prefix, meta, strict, missing, unexpected, errors: state.pop(prefix + "note")
        )
        n.register_load_state_dict_post_hook(
            lambda mod, keys: log.append(("loaded", list(keys.missing_keys)))
        )
        result = n.load_state_dict(state)
        del state["0._extra_state"]
        after = t.nn.Sequential(Extra(1, 1), t.nn.Linear(1, 1)).load_state_dict(state, strict=False)
        return [list(state), log, repr(result), n[0].note, repr(after), dict(state._metadata)]

    agree(play)
    fails(lambda t: _post_hook_that_returns(t))
    agree(lambda t: list(t.nn.Linear(1, 1).state_dict(OrderedDict(), "a.", True)))


def _post_hook_that_returns(t: Any) -> None:
    m = t.nn.Linear(1, 1)
    m.register_state_dict_post_hook(lambda mod, state, prefix, meta: state)
    m.state_dict()


# -- moves and modes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ("half", "double", "bfloat16", "float"))
def test_casts_change_floating_tensors_in_place(how: str) -> None:
    def cast(t: Any) -> Any:
        m = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.BatchNorm1d(2))
        weight = m[0].weight
        m[0](t.ones(1, 2)).sum().backward()
        assert getattr(m, how)() is m
        assert m[0].weight is weight
        return [{k: v.dtype for k, v in m.state_dict().items()}, weight.grad.dtype]

    agree(cast)


def test_to_takes_what_tensors_take() -> None:
    def play(t: Any) -> Any:
        m = t.nn.Conv2d(3, 2, 2)
        m.to(memory_format=t.channels_last)
        strides = m.weight.stride()
        m.to(t.float64)
        kinds = [p.dtype for p in m.parameters()]
        m.to(t.zeros(1, dtype=t.float16))
        m.to("cpu", t.float32)
        return [strides, kinds, [p.dtype for p in m.parameters()]]

    agree(play)
    agree(lambda t: [p.dtype for p in t.nn.Linear(2, 2).to(t.complex64).parameters()])
    agree(lambda t: t.nn.Linear(2, 2).type(t.float64).weight.dtype)
    agree(lambda t: [p.shape for p in t.nn.Linear(2, 3).to_empty(device="cpu").parameters()])


def test_j03_modules_move_to_virtual_gpus_and_back() -> None:
    with flambeau.virtual(devices=2):
        m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        weight, before = m[0].weight, m[0].weight.tolist()
        m(flambeau.ones(4, 2)).sum().backward()
        assert m.cuda(1) is m and m[0].weight is weight
        assert {str(x.device) for x in (*m.parameters(), *m.buffers(), weight.grad)} == {"cuda:1"}
        out = m(flambeau.ones(4, 2, device="cuda:1"))
        out.sum().backward()
        assert str(weight.grad.device) == "cuda:1"
        m.to("cuda:0")
        assert str(m[1].running_mean.device) == "cuda:0"
        assert m.cpu()[0].weight.tolist() == before


def test_train_eval_apply_zero_grad_requires_grad() -> None:
    def play(t: Any) -> Any:
        m = small(t)
        order: list[str] = []
        m.apply(lambda x: order.append(type(x).__name__))
        m.eval()
        modes = [x.training for x in m.modules()]
        m.train()
        m(t.ones(1, 2)).sum().backward()
        grads = [p.grad is None for p in m.parameters()]
        m.zero_grad(set_to_none=False)
        zeros = [p.grad for p in m.parameters()]
        m.zero_grad()
        none = [p.grad is None for p in m.parameters()]
        m.requires_grad_(False)
        return [order, modes, m.training, grads, zeros, none, [p.requires_grad for p in m.parameters()]]

    agree(play)


def test_text_of_nested_modules_and_of_several_lines() -> None:
    def play(t: Any) -> Any:
        class Lines(t.nn.Module):
            def extra_repr(self) -> str:
                return "one\ntwo"

        class One(t.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = t.nn.Sequential(Lines(), t.nn.Sequential(Lines()))
                self.none = None
                self.add_module("nothing", None)

            def extra_repr(self) -> str:
                return "one"

        return [repr(Lines()), repr(One()), repr(t.nn.Module()), repr(t.nn.Sequential())]

    agree(play)


def test_what_flambeau_lacks_is_said() -> None:
    with pytest.raises(AttributeError, match="nosuch"):
        nn.nosuch  # noqa: B018
