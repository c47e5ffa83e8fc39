"""Final callbacks of a backward pass, which run when all gradients have been accumulated."""

import pytest

import flambeau
from flambeau.tape.mode import mode


def test_endings_come_after_all_gradients_and_on_the_callers_streams():
    with flambeau.virtual(devices=1):
        x = flambeau.ones(2, device="cuda", requires_grad=True)
        side, order = flambeau.cuda.Stream(), []
        with flambeau.cuda.stream(side):
            y = x * 2
        flambeau.cuda.current_stream().wait_stream(side)

        def ending():
            order.append(("ending", flambeau.cuda.current_stream() == flambeau.cuda.default_stream()))
            order.append(("no walk", mode.engine is None and x.grad is not None))

        y.register_hook(
            lambda g: (order.append(("hook", None)), mode.engine.final_callbacks.append(ending))[0]
        )
        y.sum().backward()
        assert order == [("hook", None), ("ending", True), ("no walk", True)]


def test_a_walk_that_raises_calls_no_ending():
    x = flambeau.ones(2, requires_grad=True)
    called = []

    def hook(grad):
        mode.engine.final_callbacks.append(lambda: called.append(1))
        raise KeyError("of the hook")

    y = x * 2
    y.register_hook(hook)
    with pytest.raises(KeyError, match="of the hook"):
        y.sum().backward()
    assert called == []


def test_libraries_queue_callbacks_by_the_engine_of_variable():
    x, called = flambeau.ones(2, requires_grad=True), []
    engine = flambeau.autograd.Variable._execution_engine
    with pytest.raises(RuntimeError, match="can only be installed during backward pass"):
        engine.queue_callback(print)
    y = x * 2
    y.register_hook(lambda grad: engine.queue_callback(lambda: called.append(x.grad.tolist())))
    y.sum().backward()
    assert called == [[2, 2]]
