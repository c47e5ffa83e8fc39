"""Final callbacks of a backward pass, which run when all gradients have been accumulated."""

import pytest
import torch as oracle

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
            order.append(("gradients", x.grad is not None and not mode.recording))

        y.register_hook(
            lambda g: (order.append(("hook", None)), mode.engine.final_callbacks.append(ending))[0]
        )
        y.sum().backward()
        assert order == [("hook", None), ("ending", True), ("gradients", True)]


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


def test_final_callbacks_queue_others_and_run_backward():
    results = []
    for lib in (flambeau, oracle):
        x, called = lib.ones(2, requires_grad=True), []
        queue = lib.autograd.Variable._execution_engine.queue_callback

        def again(lib=lib, x=x, called=called, queue=queue):
            called.append(("again", lib.is_grad_enabled()))
            queue(lambda: called.append(x.grad.tolist()))
            with lib.enable_grad():
                (x * 3).sum().backward()

        y = x * 2
        y.register_hook(lambda grad, queue=queue, again=again: queue(again))
        y.sum().backward()
        with pytest.raises(RuntimeError, match="can only be installed during backward pass"):
            queue(print)
        results.append(called)
    assert results[0] == results[1] == [("again", False), [5, 5]]
