"""Hooks of modules and of all modules, forward and backward, against PyTorch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from nn_kit import agree, fails

import flambeau


def pair(t: Any) -> Any:
    """Two linear maps of known weights."""
    m = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.Linear(2, 1))
    for i, p in enumerate(m.parameters()):
        p.data.copy_(t.arange(p.numel()).reshape(p.shape) * 0.5 + i)
    return m


def given(t: Any) -> Any:
    return t.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)


# -- forward ----------------------------------------------------------------------------------------------


def test_forward_hooks_see_and_change() -> None:
    def play(t: Any) -> Any:
        m, log = pair(t), []
        m.register_forward_pre_hook(lambda mod, args: log.append(("pre", args)))
        m.register_forward_pre_hook(lambda mod, args: args[0] * 2)
        m[0].register_forward_pre_hook(lambda mod, args: (args[0] + 1,), prepend=True)
        m.register_forward_hook(lambda mod, args, out: log.append(("out", args, out)))
        handle = m.register_forward_hook(lambda mod, args, out: out * 3)
        m.register_forward_hook(lambda mod, args, out: log.append("first"), prepend=True)
        outs = [m(given(t))]
        handle.remove()
        handle.remove()
        with m.register_forward_hook(lambda mod, args, out: out - 100):
            outs.append(m(given(t)))
        outs.append(m(given(t)))
        return [outs, log, len(m._forward_hooks)]

    agree(play)


def keyworded(t: Any) -> Any:
    class Scaled(t.nn.Module):
        def forward(self, x: Any, *, by: float = 1.0) -> Any:
            if by < 0:
                raise ValueError("negative")
            return x * by

    return Scaled()


def test_hooks_with_keyword_arguments_and_those_always_called() -> None:
    def play(t: Any) -> Any:
        m, log = keyworded(t), []
        m.register_forward_pre_hook(
            lambda mod, args, kwargs: (args, {"by": kwargs["by"] * 2}), with_kwargs=True
        )
        m.register_forward_hook(
            lambda mod, args, kwargs, out: log.append(("kwargs", kwargs, out)),
            with_kwargs=True,
            always_call=True,
        )
        m.register_forward_hook(lambda mod, args, out: log.append("plain"))
        m.register_forward_hook(lambda mod, args, out: 1 / 0 if out is None else None, always_call=True)
        out = m(t.ones(2), by=3.0)
        with pytest.raises(ValueError, match="negative"):
            m(t.ones(2), by=-1.0)
        return [out, log]

    agree(play)
    fails(lambda t: _bad_pre_hook(t))


def _bad_pre_hook(t: Any) -> None:
    m = keyworded(t)
    m.register_forward_pre_hook(lambda mod, args, kwargs: 3, with_kwargs=True)
    m(t.ones(2))


# -- backward -----------------------------------------------------------------------------------------------


def test_full_backward_hooks_see_and_change() -> None:
    def play(t: Any) -> Any:
        m, log = pair(t), []
        m[0].register_full_backward_hook(lambda mod, gi, go: log.append(("0", gi, go)))
        m[1].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))
        m[1].register_full_backward_hook(lambda mod, gi, go: log.append(("1", gi, go)))
        m[1].register_full_backward_hook(lambda mod, gi, go: log.append("first"), prepend=True)
        m[1].register_full_backward_pre_hook(lambda mod, go: log.append(("pre", go)))
        m[1].register_full_backward_pre_hook(lambda mod, go: (go[0] * 10,))
        x = given(t)
        m(x).sum().backward()
        log.append([p.grad for p in m.parameters()])
        y = given(t).detach()
        m.zero_grad()
        m(y).sum().backward()  # the first module's input needs no gradient
        return [log, x.grad, [p.grad for p in m.parameters()]]

    agree(play)


def test_backward_hooks_of_several_inputs_and_outputs() -> None:
    def play(t: Any) -> Any:
        class Many(t.nn.Module):
            def forward(self, a: Any, n: int, b: Any, c: Any) -> Any:
                return a * n, "text", b * c

        m, log = Many(), []
        m.register_full_backward_hook(lambda mod, gi, go: log.append((gi, go)))
        a, b, c = t.ones(2, requires_grad=True), t.ones(2), t.ones(2, requires_grad=True)
        x, _, y = m(a, 3, b, c)
        (x.sum() + 2 * y.sum()).backward()
        return [log, a.grad, c.grad, b.requires_grad]

    agree(play)


def test_backward_hooks_do_not_run_without_gradients() -> None:
    def play(t: Any) -> Any:
        m, log = pair(t), []
        m.register_full_backward_hook(lambda mod, gi, go: log.append("ran"))
        with t.no_grad():
            out = m(given(t))
        return [log, out]

    agree(play)


WRONG = (
    lambda m: m.register_full_backward_hook(lambda mod, gi, go: (gi[0], gi[0])),
    lambda m: m.register_full_backward_pre_hook(lambda mod, go: (go[0], go[0])),
)


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_hooks_that_return_too_much(index: int) -> None:
    def play(t: Any) -> None:
        m = pair(t)
        WRONG[index](m)
        m(given(t)).sum().backward()

    fails(play)


def test_hooks_whose_module_has_no_input_that_needs_gradients() -> None:
    def play(t: Any) -> None:
        m = pair(t)
        m.register_full_backward_hook(lambda mod, gi, go: (t.ones(2, 2),))
        m(given(t).detach()).sum().backward()

    fails(play)


def test_full_and_plain_backward_hooks_do_not_mix() -> None:
    def full_then_plain(t: Any) -> None:
        m = pair(t)
        m.register_full_backward_hook(lambda mod, gi, go: None)
        m.register_backward_hook(lambda mod, gi, go: None)

    def plain_then_full(t: Any) -> None:
        m = pair(t)
        m.register_backward_hook(lambda mod, gi, go: None)
        m.register_full_backward_hook(lambda mod, gi, go: None)

    fails(full_then_plain)
    fails(plain_then_full)


def test_plain_backward_hooks_see_the_last_operation() -> None:
    def play(t: Any) -> Any:
        class Half(t.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * 0.5

        m, log = Half(), []
        m.register_backward_hook(lambda mod, gi, go: log.append((gi[0], go)))
        x = given(t)
        (m(x) * 3).sum().backward()
        return [log, x.grad]

    agree(play)


def test_what_is_changed_in_place_behind_a_backward_hook_is_refused() -> None:
    def play(t: Any) -> None:
        m = t.nn.ReLU(inplace=True)
        m.register_full_backward_hook(lambda mod, gi, go: None)
        m(given(t) * 1)

    for t in (__import__("torch"), flambeau):
        with pytest.raises(RuntimeError, match="modified inplace"):
            play(t)


# -- of all modules -----------------------------------------------------------------------------------------


def test_hooks_of_all_modules() -> None:
    def play(t: Any) -> Any:
        hooks, log = t.nn.modules.module, []
        handles = [
            hooks.register_module_forward_pre_hook(lambda mod, args: log.append(("pre", type(mod).__name__))),
            hooks.register_module_forward_hook(
                lambda mod, args, out: log.append(("post", type(mod).__name__))
            ),
            hooks.register_module_forward_hook(
                lambda mod, args, kwargs, out: log.append(kwargs), with_kwargs=True, always_call=True
            ),
            hooks.register_module_full_backward_pre_hook(lambda mod, go: log.append(("pre back", go))),
            hooks.register_module_full_backward_hook(lambda mod, gi, go: log.append(("back", gi))),
        ]
        try:
            m = pair(t)
            m(given(t)).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        m(given(t))
        return log

    agree(play)


def test_registration_hooks_of_all_modules() -> None:
    def play(t: Any) -> Any:
        hooks, log = t.nn.modules.module, []
        handles = [
            hooks.register_module_parameter_registration_hook(
                lambda mod, name, p: log.append((name, p.shape))
            ),
            hooks.register_module_buffer_registration_hook(lambda mod, name, b: log.append(name)),
            hooks.register_module_module_registration_hook(
                lambda mod, name, sub: t.nn.Tanh() if isinstance(sub, t.nn.ReLU) else None
            ),
        ]
        try:
            m = t.nn.Sequential(t.nn.BatchNorm1d(2), t.nn.ReLU())
        finally:
            for handle in handles:
                handle.remove()
        return [log, m]

    agree(play)


class Counted(flambeau.nn.Linear):
    """Its hook is a method, so it can be pickled."""

    def note(self, module: Any, args: Any) -> None:
        self.seen = getattr(self, "seen", 0) + 1


def test_hooks_go_along_with_copies_and_pickles() -> None:
    m = Counted(1, 1)
    handle = m.register_forward_pre_hook(m.note)
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        again(flambeau.ones(1))
        assert (again.seen, len(again._forward_pre_hooks)) == (1, 1)
    assert not hasattr(m, "seen")
    kept = pickle.loads(pickle.dumps((m._forward_pre_hooks, handle)))
    kept[1].remove()
    assert not kept[0] and m._forward_pre_hooks
