"""Function, hooks of tensors and nodes, graph, anomalies, modes: what programs see is what PyTorch shows them."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau

BOTH = [flambeau, torch]


def both(program: Callable[[Any], Any]) -> Any:
    """What a program gives with Flambeau, which must be what it gives with PyTorch: a value, or an error and its text."""
    ours, theirs = (outcome(program, lib) for lib in BOTH)
    assert ours == theirs
    return ours


def outcome(program: Callable[[Any], Any], lib: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return listed(program(lib))
        except Exception as error:
            return type(error).__name__, str(error)


def listed(x: Any) -> Any:
    if hasattr(x, "tolist"):
        return listed(x.tolist())
    if isinstance(x, float):
        return float(f"{x:.9g}")
    return [listed(y) for y in x] if isinstance(x, list | tuple) else x


def function(lib: Any, forward: Any, backward: Any = lambda ctx, *grads: grads) -> Any:
    return type(
        "F", (lib.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def leaf(lib: Any) -> Any:
    return lib.tensor([1.0, 2.0, 3.0], dtype=lib.float64, requires_grad=True)


def state(t: Any) -> Any:
    return [None if t.grad_fn is None else t.grad_fn.name(), t.requires_grad, t._is_view(), t.is_leaf]


# -- Function ---------------------------------------------------------------------------------------------


def doubled_in_place(ctx: Any, a: Any) -> Any:
    a.mul_(2)
    ctx.mark_dirty(a)
    return a


def kept(ctx: Any, a: Any) -> Any:
    ctx.save_for_backward(a)
    return a * a


def kept_back(ctx: Any, grad: Any) -> Any:
    return 2 * ctx.saved_tensors[0] * grad


def walked(lib: Any, forward: Any, backward: Any, *more: Any) -> Any:
    x = leaf(lib)
    function(lib, forward, backward).apply(x, *more).sum().backward()
    return x.grad


def undifferentiable(ctx: Any, a: Any) -> Any:
    b = a * 1
    ctx.mark_non_differentiable(b)
    return b, a * 2


def unmaterialized(ctx: Any, a: Any) -> Any:
    ctx.set_materialize_grads(False)
    return a * 1, a * 2


def two(lib: Any, forward: Any) -> Any:
    seen: list[Any] = []

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append([None if g is None else listed(g) for g in grads])
        return grads[1]

    x = leaf(lib)
    outputs = function(lib, forward, backward).apply(x)
    outputs[1].sum().backward()
    return seen, x.grad, [state(t) for t in outputs]


def among_others(lib: Any, materialize: bool) -> Any:
    """Outputs that are no tensors count: in `backward`, in hooks of the node, in `output_nr`."""
    seen: list[Any] = []

    def forward(ctx: Any, a: Any) -> Any:
        ctx.set_materialize_grads(materialize)
        first, second = a * 2, a.exp()
        ctx.save_for_backward(second)
        return 3, first, None, second, "s"

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append([None if g is None else listed(g) for g in grads])
        return grads[3] * ctx.saved_tensors[0]

    x = leaf(lib)
    outputs = function(lib, forward, backward).apply(x)
    node = outputs[1].grad_fn
    node.register_prehook(lambda grads: seen.append([None if g is None else listed(g) for g in grads]))
    outputs[3].pow(2).sum().backward(retain_graph=True)
    (again,) = lib.autograd.grad(outputs[3].sum(), x, create_graph=True)
    again.sum().backward()
    return seen, x.grad, again, outputs[0], outputs[2], outputs[4], outputs[1].output_nr, outputs[3].output_nr


def modified(lib: Any) -> Any:
    y = leaf(lib).exp()
    z = function(lib, kept, kept_back).apply(y)
    y.mul_(1)
    z.sum().backward()


def setup_apart(lib: Any) -> Any:
    seen: list[Any] = []

    class Apart(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(a: Any, b: Any = 3) -> Any:
            return a * b

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], output)
            ctx.factor = inputs[1]
            seen.append(ctx.needs_input_grad)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.append([listed(t) for t in ctx.saved_tensors])
            return grad * ctx.factor, None

    x = leaf(lib)
    Apart.apply(x).sum().backward()
    Apart.apply(x, 2).sum().backward()
    return seen, x.grad


def once(lib: Any) -> Any:
    x = leaf(lib)
    backward = lib.autograd.function.once_differentiable(kept_back)
    y = function(lib, kept, backward).apply(x)
    seed = lib.ones(3, dtype=lib.float64, requires_grad=True)
    (grad,) = lib.autograd.grad(y, x, seed, create_graph=True)
    grad.sum().backward()


def named_vjp(lib: Any, more: dict[str, Any]) -> Any:
    members = {"forward": staticmethod(kept), "vjp": staticmethod(kept_back)} | more
    x = leaf(lib)
    type("V", (lib.autograd.Function,), members).apply(x).sum().backward()
    return x.grad


def dirty_view(lib: Any) -> Any:
    y = leaf(lib) * 1
    view = y[:2]
    function(lib, doubled_in_place, lambda ctx, g: g * 2).apply(view)
    return y, y.requires_grad, view.requires_grad, y._version, y.is_leaf


def twice_used(lib: Any) -> Any:
    z = function(lib, kept, kept_back).apply(leaf(lib))
    z.sum().backward()
    z.sum().backward()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "saved": lambda lib: walked(lib, kept, kept_back),
    "dirty leaf": lambda lib: function(lib, doubled_in_place).apply(leaf(lib)),
    "dirty": lambda lib: state(function(lib, doubled_in_place).apply(leaf(lib) * 1)),
    "dirty, not returned": lambda lib: function(lib, lambda ctx, a: ctx.mark_dirty(a) or a * 2).apply(leaf(lib) * 1),
    "dirty view": dirty_view,
    "input as it is": lambda lib: state(function(lib, lambda ctx, a: a).apply(leaf(lib))),
    "input as it is, without grad": lambda lib: lib.no_grad()(lambda: state(function(lib, lambda c, a: a).apply(leaf(lib))))(),
    "view": lambda lib: state(function(lib, lambda ctx, a: a.view(-1)).apply(leaf(lib))),
    "view changed": lambda lib: function(lib, lambda ctx, a: a.view(-1)).apply(leaf(lib) * 1).mul_(2),
    "views changed": lambda lib: function(lib, lambda ctx, a: (a[:1], a[1:])).apply(leaf(lib) * 1)[0].mul_(2),
    "other outputs": lambda lib: function(lib, lambda ctx, a: (a * 1, 3, None, "s")).apply(leaf(lib)),
    "list": lambda lib: function(lib, lambda ctx, a: [a * 1]).apply(leaf(lib))[0].requires_grad,
    "too few": lambda lib: walked(lib, kept, lambda ctx, g: ()),
    "too many": lambda lib: walked(lib, kept, lambda ctx, g: (g, g)),
    "None beyond": lambda lib: walked(lib, kept, lambda ctx, g: (g, None)),
    "no tensor": lambda lib: walked(lib, kept, lambda ctx, g: 3),
    "no gradient": lambda lib: walked(lib, kept, lambda ctx, g: None),
    "shape": lambda lib: walked(lib, kept, lambda ctx, g: g[:2]),
    "broadcast": lambda lib: walked(lib, kept, lambda ctx, g: g.expand(2, 3)),
    "dtype": lambda lib: walked(lib, kept, lambda ctx, g: g.float()),
    "for no tensor": lambda lib: walked(lib, lambda ctx, a, b: a * b, lambda ctx, g: (g, g), 3),
    "no backward": lambda lib: type("G", (lib.autograd.Function,), {"forward": staticmethod(kept)}).apply(leaf(lib)).sum().backward(),
    "no forward": lambda lib: type("G", (lib.autograd.Function,), {}).apply(leaf(lib)),
    "save a number": lambda lib: function(lib, lambda ctx, a: ctx.save_for_backward(3) or a * 1).apply(leaf(lib)),
    "not differentiable": lambda lib: two(lib, undifferentiable),
    "missing gradients": lambda lib: two(lib, unmaterialized),
    "outputs among others": lambda lib: among_others(lib, True),
    "outputs among others, unmaterialized": lambda lib: among_others(lib, False),
    "modified": lambda lib: outcome(modified, lib)[1].split(", which")[0],
    "setup_context": setup_apart,
    "once": once,
    "vjp": lambda lib: named_vjp(lib, {}),
    "vjp and backward": lambda lib: named_vjp(lib, {"backward": staticmethod(kept_back)}),
    "twice": twice_used,
    "called": lambda lib: function(lib, kept)()(leaf(lib)),
    "raises": lambda lib: function(lib, lambda ctx, a: [][0]).apply(leaf(lib)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_function(name: str) -> None:
    both(PROGRAMS[name])


# -- hooks ------------------------------------------------------------------------------------------------


def order_of_hooks(lib: Any) -> Any:
    calls: list[Any] = []

    def note(name: str, result: Callable[[Any], Any] = lambda g: None) -> Callable[[Any], Any]:
        return lambda g: calls.append((name, listed(g))) or result(g)

    x = leaf(lib)
    y = x * 2
    y.register_hook(note("first", lambda g: g * 2))
    removed = y.register_hook(note("removed"))
    y.register_hook(note("second", lambda g: g + 1))
    removed.remove()
    removed.remove()
    y.retain_grad()
    y.register_hook(note("third", lambda g: g * 10))
    y.grad_fn.register_prehook(lambda grads: calls.append(("pre", listed(grads))))
    y.grad_fn.register_hook(
        lambda inputs, outputs: calls.append(("post", listed(inputs[:1]), listed(outputs)))
    )
    x.register_hook(note("leaf"))
    x.register_post_accumulate_grad_hook(lambda t: calls.append(("accumulated", listed(t.grad))))
    (y * 3).sum().backward()
    with x.register_hook(note("inside")):
        (x * 2).sum().backward()
    (x * 2).sum().backward()
    return calls, x.grad, y.grad


def returned(result: Callable[[Any], Any], on: str = "tensor") -> Callable[[Any], Any]:
    def program(lib: Any) -> Any:
        x = leaf(lib)
        y = x * 2
        if on == "tensor":

            def hook(grad: Any) -> Any:
                return result(grad)

            y.register_hook(hook)
        elif on == "pre":

            def prehook(grads: Any) -> Any:
                return result(grads)

            y.grad_fn.register_prehook(prehook)
        else:

            def post(inputs: Any, outputs: Any) -> Any:
                return result(inputs)

            y.grad_fn.register_hook(post)
        y.sum().backward()
        return x.grad

    return program


def retained_in_place(lib: Any) -> Any:
    x = leaf(lib)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.mul_(3)
    z = y[:2]
    z.retain_grad()
    z.exp_()
    y.sum().backward()
    return y.grad, x.grad, z.grad, y.retains_grad, z.retains_grad


def hooks_of_several(lib: Any, kind: str) -> Any:
    calls: list[Any] = []
    x, y = leaf(lib), leaf(lib)
    handle = lib.autograd.graph.register_multi_grad_hook(
        (x, y), lambda given: calls.append(listed(given)), mode=kind
    )
    (x * 2).sum().backward()
    (x * y).sum().backward()
    handle.remove()
    (x * y).sum().backward()
    return calls


HOOKS: dict[str, Callable[[Any], Any]] = {
    "order": order_of_hooks,
    "number": returned(lambda g: 3),
    "size": returned(lambda g: g[:1]),
    "type": returned(lambda g: g.float()),
    "pre, no tuple": returned(lambda g: g[0], "pre"),
    "pre, too many": returned(lambda g: g * 2, "pre"),
    "pre, replaced": returned(lambda g: (g[0] * 5,), "pre"),
    "pre, text": returned(lambda g: ("a",), "pre"),
    "post, replaced": returned(lambda g: (g[0] * 5, *g[1:]), "post"),
    "post, text": returned(lambda g: ("a", *g[1:]), "post"),
    "post, no tuple": returned(lambda g: g[0], "post"),
    "retained": retained_in_place,
    "several, all": lambda lib: hooks_of_several(lib, "all"),
    "several, any": lambda lib: hooks_of_several(lib, "any"),
    "several, else": lambda lib: hooks_of_several(lib, "some"),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(name: str) -> None:
    both(HOOKS[name])


# -- what nodes save --------------------------------------------------------------------------------------


def packed(lib: Any) -> Any:
    seen: list[Any] = []
    x = leaf(lib)

    def pack(t: Any) -> Any:
        seen.append(("pack", listed(t)))
        return len(seen), t.detach().clone()

    def unpack(given: Any) -> Any:
        seen.append(("unpack", given[0]))
        return given[1]

    with lib.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.exp()
        z = (y * y).sum()
    y.add_(1)
    z.backward()
    return seen, x.grad


def nested(lib: Any) -> Any:
    hooks = lib.autograd.graph.saved_tensors_hooks
    x = leaf(lib)
    with hooks(lambda t: t * 2, lambda t: t), hooks(lambda t: t * 3, lambda t: t):
        y = x * x
    y.sum().backward()
    return x.grad


def unpacks_number(lib: Any) -> Any:
    x = leaf(lib)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x.exp()
    y.sum().backward()


def packs_in_place(lib: Any) -> Any:
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
        return (leaf(lib) * 1) * leaf(lib)


def hooks_disabled(lib: Any, inside: bool) -> Any:
    graph = lib.autograd.graph
    hooks, disabled = (
        graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        graph.disable_saved_tensors_hooks("not here"),
    )
    first, second = (hooks, disabled) if inside else (disabled, hooks)
    with first, second:
        return 1


def mutated(lib: Any, inside: bool) -> Any:
    x = leaf(lib)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = (y * y).sum()
        y.add_(1)
        if inside:
            z.backward()
    if not inside:
        z.backward()
    return x.grad


def edges(lib: Any) -> Any:
    x = leaf(lib)
    y = x * 2
    edge = lib.autograd.graph.get_gradient_edge(y)
    first = lib.autograd.grad((y * y).sum(), edge, retain_graph=True)
    second = lib.autograd.grad(edge, x, lib.ones(3, dtype=lib.float64))
    return first, second, isinstance(edge.node, lib.autograd.graph.Node), edge.output_nr, edge.node.name()


SAVED: dict[str, Callable[[Any], Any]] = {
    "packed": packed,
    "nested": nested,
    "unpacks a number": unpacks_number,
    "packs in place": packs_in_place,
    "disabled": lambda lib: hooks_disabled(lib, False),
    "disabled inside": lambda lib: hooks_disabled(lib, True),
    "mutated": lambda lib: mutated(lib, True),
    "mutated, walked outside": lambda lib: mutated(lib, False),
    "edges": edges,
    "no edge": lambda lib: lib.autograd.graph.get_gradient_edge(lib.ones(1)),
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_tensors(name: str) -> None:
    both(SAVED[name])


# -- gradients of what, and how many times ----------------------------------------------------------------


def setter(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(lib: Any) -> Any:
        x = leaf(lib)
        x.grad = value(lib)
        return x.grad

    return program


def complex_gradients(lib: Any) -> Any:
    z = lib.tensor([1 + 2j, -0.5 + 1j], dtype=lib.complex128, requires_grad=True)
    (z.abs() + (z * z).real + z.angle()).sum().backward()
    first = lib.view_as_real(z.grad).round(decimals=10)
    (grad,) = lib.autograd.grad((z * z * z.conj()).abs().sum(), z, create_graph=True)
    second = lib.autograd.grad(grad.abs().sum(), z)[0]
    return first, lib.view_as_real(second).round(decimals=10)


def with_inputs(lib: Any) -> Any:
    x, y = leaf(lib), leaf(lib)
    z = x * y
    w = z.exp()
    w.sum().backward(inputs=[y, z])
    return x.grad, y.grad, z.grad


def into(inputs: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def program(lib: Any) -> Any:
        x = leaf(lib)
        (x * x).sum().backward(inputs=inputs(lib, x))
        return x.grad

    return program


WALKS: dict[str, Callable[[Any], Any]] = {
    "grad of no tensor": setter(lambda lib: 3),
    "grad of another dtype": lambda lib: outcome(setter(lambda _: lib.ones(3, dtype=lib.float32)), lib)[0],
    "grad of another shape": setter(lambda lib: lib.ones(2, dtype=lib.float64)),
    "grad": setter(lambda lib: lib.ones(3, dtype=lib.float64)),
    "own grad": lambda lib: (lambda x: setattr(x, "grad", x))(leaf(lib)),
    "integers": lambda lib: lib.ones(2, dtype=lib.int64).requires_grad_(),
    "integers at creation": lambda lib: outcome(lambda _: lib.tensor([1], requires_grad=True), lib)[0],
    "flag of a result": lambda lib: setattr(leaf(lib) * 2, "requires_grad", False),
    "no scalar": lambda lib: leaf(lib).exp().backward(),
    "complex scalar": lambda lib: lib.tensor(1j, requires_grad=True).exp().backward(),
    "shape of the gradient": lambda lib: leaf(lib).exp().backward(lib.ones(2)),
    "no gradient wanted": lambda lib: lib.ones(1).backward(),
    "unused": lambda lib: lib.autograd.grad(leaf(lib).sum(), leaf(lib)),
    "unused, allowed": lambda lib: lib.autograd.grad(leaf(lib).sum(), leaf(lib), allow_unused=True),
    "unused, zeros": lambda lib: lib.autograd.grad(leaf(lib).sum(), leaf(lib), materialize_grads=True),
    "both": lambda lib: lib.autograd.grad(
        leaf(lib).sum(), leaf(lib), materialize_grads=True, allow_unused=False
    ),
    "inputs": with_inputs,
    "no inputs": into(lambda lib, x: []),
    "inputs that need none": into(lambda lib, x: [lib.ones(1)]),
    "one input": into(lambda lib, x: x),
    "complex": complex_gradients,
    "copy of a result": lambda lib: copy.deepcopy(leaf(lib) * 2),
    "pickle of a result": lambda lib: pickle.loads(pickle.dumps(leaf(lib) * 2)).requires_grad,
}


@pytest.mark.parametrize("name", WALKS)
def test_walks(name: str) -> None:
    both(WALKS[name])


def test_copies_of_leaves() -> None:
    x = leaf(flambeau)
    (x * x).sum().backward()
    copied, loaded = copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    assert copied.is_leaf and copied.requires_grad and copied.grad.tolist() == x.grad.tolist()
    assert copied.grad is not x.grad
    assert loaded.is_leaf and loaded.requires_grad and loaded.grad is None


def test_half_gradients_are_of_their_dtype() -> None:
    for kind in ("float16", "bfloat16"):
        grads = []
        for lib in BOTH:
            x = lib.tensor([1.0, 2.0, 3.0], dtype=getattr(lib, kind), requires_grad=True)
            (x.float().exp().sum() + (x * x).sum()).backward()
            assert repr(x.grad.dtype) == f"torch.{kind}"
            grads.append(x.grad.float().tolist())
        assert grads[0] == grads[1]


# -- modes ------------------------------------------------------------------------------------------------


def modes(lib: Any) -> Any:
    seen: list[Any] = []

    def look() -> None:
        seen.append((lib.is_grad_enabled(), (leaf(lib) * 2).requires_grad))

    @lib.no_grad()
    def plain() -> None:
        look()

    @lib.no_grad
    def bare() -> None:
        look()

    @lib.enable_grad()
    def within() -> None:
        look()

    @lib.set_grad_enabled(False)
    def switched() -> None:
        look()

    @lib.no_grad()
    def generator() -> Any:
        look()
        got = yield 1
        look()
        try:
            yield got
        except KeyError:
            look()
            yield 3
        return 4

    for f in (plain, bare, switched, look):
        f()
    with lib.no_grad():
        within()
        look()
    made = generator()
    seen.append(next(made))
    look()
    seen.append(made.send(2))
    seen.append(made.throw(KeyError()))
    look()
    seen.append(list(made))
    lib.set_grad_enabled(False)
    look()
    lib.set_grad_enabled(True)
    with lib.set_grad_enabled(False):
        look()
    look()
    return seen


def inference(lib: Any) -> Any:
    x = leaf(lib)
    with lib.inference_mode():
        a, b, view, required = lib.ones(2), x * 2, x[:1], lib.ones(2, requires_grad=True)
        part = a[:1]
        a.add_(1)
    seen = [[t.is_inference(), t.requires_grad] for t in (a, b, view, required, part, x)]
    trials: list[Callable[[], Any]] = [
        lambda: a.add_(1), lambda: part.add_(1), lambda: a.zero_(), lambda: a.copy_(x[:2]), lambda: a.unsqueeze_(0),
        lambda: a._version, lambda: a.requires_grad_(), lambda: a * x[:2], lambda: (a + x[:2]).requires_grad,
        lambda: (a * 2).is_inference(), lambda: a[:1].is_inference(), lambda: a.clone().is_inference(),
        lambda: view.mul_(2), lambda: (view * 2).requires_grad, lambda: lib.no_grad()(lambda: a.add_(1))(),
        lambda: a.__setitem__(0, 1.0), lambda: lib.is_inference(a), lambda: a.detach().is_inference(),
    ]  # fmt: skip
    return seen, [outcome(lambda _, f=f: f(), lib) for f in trials]


def inference_nested(lib: Any) -> Any:
    seen = []
    with lib.inference_mode():
        with lib.enable_grad():
            seen.append((leaf(lib) * 2).requires_grad)
        with lib.inference_mode(False):
            seen.append(
                (lib.is_inference_mode_enabled(), (leaf(lib) * 2).requires_grad, lib.ones(1).is_inference())
            )
    made = lib.inference_mode()(lambda: lib.ones(1).is_inference())()
    return seen, made, lib.ones(1).is_inference()


@pytest.mark.parametrize("program", [modes, inference, inference_nested], ids=lambda p: p.__name__)
def test_modes(program: Callable[[Any], Any]) -> None:
    both(program)


def test_decorating_a_class_warns() -> None:
    for lib in BOTH:
        with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):

            @lib.no_grad()
            class Made:
                pass


# -- anomalies --------------------------------------------------------------------------------------------


def test_an_anomaly_names_the_line_of_the_forward_call() -> None:
    for lib in BOTH:
        with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"), warnings.catch_warnings():
            manager = lib.autograd.detect_anomaly()
            warnings.warn("Anomaly Detection has been enabled", UserWarning, stacklevel=1)
        with manager:
            x = lib.tensor([-1.0], requires_grad=True)
            y = x.sqrt()  # the line to be named
            message = r"Function 'SqrtBackward0' returned nan values in its 0th output\."
            named = pytest.warns(
                UserWarning, match=r"(?s)Error detected in SqrtBackward0.*the line to be named"
            )
            with named, pytest.raises(RuntimeError, match=message):
                y.sum().backward()


def test_an_anomaly_without_a_forward_trace() -> None:
    for lib in BOTH:
        x = lib.tensor([-1.0], requires_grad=True)
        y = x.sqrt()
        with lib.autograd.set_detect_anomaly(True):
            told = pytest.warns(UserWarning, match="No forward pass information available")
            with told, pytest.raises(RuntimeError, match="returned nan values"):
                y.sum().backward()
        with lib.autograd.set_detect_anomaly(True, check_nan=False):
            x.sqrt().sum().backward()
        assert not lib.is_anomaly_enabled()


def test_an_input_that_is_returned_and_marked_requires_no_gradient() -> None:
    class Passing(flambeau.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.mark_non_differentiable(b)
            return a * 2, b

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            return grad * 2, None

    a, b = flambeau.ones(2, requires_grad=True), flambeau.ones(2)
    x, y = Passing.apply(a, b)
    assert (x.requires_grad, y.requires_grad, b.requires_grad) == (True, False, False)


def test_grad_takes_the_deprecated_only_inputs() -> None:
    def program(lib: Any) -> Any:
        x = lib.ones(3, requires_grad=True)
        return lib.autograd.grad((x * x).sum(), x, None, None, False, True, True)

    both(program)
    for lib in BOTH:
        x = lib.ones(3, requires_grad=True)
        with pytest.warns(FutureWarning, match="only_inputs argument is deprecated and is ignored now"):
            lib.autograd.grad((x * x).sum(), x, only_inputs=False)


@pytest.mark.parametrize(
    "take",
    [lambda x: x.numpy(), np.asarray, lambda x: x.__dlpack__(), lambda x: x.resize_(5)],
    ids=["numpy", "array", "dlpack", "resize_"],
)
def test_what_would_lose_the_history_is_refused(take: Callable[[Any], Any]) -> None:
    def program(lib: Any) -> Any:
        take(lib.ones(3, requires_grad=True))

    assert "grad" in both(program)[1]


def test_numpy_of_a_leaf_is_allowed_detached() -> None:
    x = flambeau.ones(3, requires_grad=True)
    with flambeau.no_grad():
        assert x.numpy().tolist() == [1, 1, 1]
    assert x.numpy(force=True).tolist() == x.detach().numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "program",
    [
        lambda m: str(m.autograd.Variable(m.ones(2), requires_grad=True)),
        lambda m: m.autograd.Variable(m.ones(2, requires_grad=True) * 2).requires_grad,
        lambda m: [type(x).__name__ for x in (m.autograd.Variable(), m.autograd.Variable(m.nn.Parameter(m.ones(2))))],
        lambda m: [isinstance(x, m.autograd.Variable) for x in (m.ones(1), m.nn.Parameter(m.ones(1)), 1)],
        lambda m: m.autograd.Variable(data=m.ones(2), volatile=True).requires_grad,
        lambda m: (lambda a: (m.autograd.Variable(a).add_(1), a.tolist(), a._version))(m.zeros(2))[1:],
        lambda m: m.autograd.Variable([1.0]),
        lambda m: m.autograd.Variable(m.ones(2).long(), True),
    ],
)  # fmt: skip
def test_variable(program: Callable[[Any], Any]) -> None:
    both(program)
