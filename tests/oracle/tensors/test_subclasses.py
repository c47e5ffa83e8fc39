"""Subclasses of Tensor and objects with `__torch_function__`: what tests/programs/tensor_subclasses.py does not show.

That program prints what it does under PyTorch; here is what is refused, and what all this costs those who do without it.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from typing import Any

import pytest
from support import torch

import flambeau


def derived(lib: Any) -> Any:
    return type("Derived", (lib.Tensor,), {})


def refusing(lib: Any) -> Any:
    return type("Refusing", (lib.Tensor,), {"__torch_function__": classmethod(lambda *_: NotImplemented)})


def view_that_is_a_leaf(lib: Any) -> Any:
    return lib.ones(2, 2).view(4).requires_grad_()


REFUSED = {
    "as_subclass of no tensor's": lambda m: m.ones(2).as_subclass(dict),
    "as_subclass of an instance": lambda m: m.ones(2).as_subclass(m.ones(1)),
    "_make_subclass of no tensor's": lambda m: m.Tensor._make_subclass(int, m.ones(2)),
    "_make_subclass of integers that want gradients": lambda m: m.Tensor._make_subclass(
        derived(m), m.tensor([1]), True
    ),
    "sum of strangers": lambda m: m.ones(2).as_subclass(derived(m)) + m.ones(2).as_subclass(derived(m)),
    "a method that nobody knows": lambda m: m.ones(2).as_subclass(refusing(m)).add(1),
    "a function that nobody knows": lambda m: m.cat([m.ones(2).as_subclass(refusing(m))]),
    "a property that nobody knows": lambda m: m.ones(2).as_subclass(refusing(m)).shape,
    "an operator that nobody knows": lambda m: m.ones(2).as_subclass(refusing(m)) + 1,
    "an operator of one that nobody knows": lambda m: -m.ones(2).as_subclass(refusing(m)),
    "a view that is a leaf": lambda m: view_that_is_a_leaf(m).add_(1),
    "a part of a view that is a leaf": lambda m: view_that_is_a_leaf(m).__setitem__(0, 1.0),
    "a view of a view that is a leaf": lambda m: view_that_is_a_leaf(m).view(2, 2)[0].mul_(2),
    "a mode that answers nothing": lambda m: _in_mode(m),
}


def _in_mode(lib: Any) -> Any:
    mode = type("Mode", (sys.modules[f"{lib.__name__}.overrides"].TorchFunctionMode,), {})
    with mode():
        return lib.ones(2)


def refusal(lib: Any, name: str) -> str:
    with pytest.raises((TypeError, RuntimeError, NotImplementedError)) as caught:
        REFUSED[name](lib)
    return f"{caught.type.__name__}: {str(caught.value).split(chr(10))[0]}"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    import flambeau.overrides

    assert refusal(flambeau, name) == refusal(torch, name)


def test_what_is_not_here_says_so() -> None:
    with pytest.raises(RuntimeError, match="must define __torch_dispatch__"):
        flambeau.Tensor._make_wrapper_subclass(derived(flambeau), (2, 3))
    with pytest.raises(RuntimeError, match="lacks 'dispatch_sizes_strides_policy'"):
        flambeau.Tensor._make_subclass(
            derived(flambeau), flambeau.ones(2), dispatch_sizes_strides_policy="sizes"
        )


SHOWN = {
    "an instance": lambda m: derived(m)([1, 2]),
    "a parameter of a class": lambda m: m.nn.Parameter(derived(m)([1, 2])),
    "a subclass of parameters": lambda m: type("Own", (m.nn.Parameter,), {})(m.ones(2)),
    "a class that overrides nothing": lambda m: m.arange(30.0).as_subclass(
        type("Plain", (m.Tensor,), {"__torch_function__": m._C._disabled_torch_function_impl})
    ),
    "a parameter": lambda m: m.nn.Parameter(m.ones(2)),
    "a buffer": lambda m: m.nn.Buffer(m.ones(2)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_how_instances_are_shown(name: str) -> None:
    assert repr(SHOWN[name](flambeau)) == repr(SHOWN[name](torch))


WARNED = {
    "tensor of a tensor": lambda m: m.tensor(m.ones(1)),
    "new_tensor of a tensor": lambda m: m.ones(1).new_tensor(m.ones(1)),
    "grad of no leaf": lambda m: (m.ones(1, requires_grad=True) * 2).grad,
    "T of three dimensions": lambda m: m.ones(1, 1, 1).T,
    "meshgrid": lambda m: m.meshgrid(m.ones(1), m.ones(2)),
    "cov of too few": lambda m: m.ones(1).cov(),
    "softmax": lambda m: m.nn.functional.softmax(m.ones(2, 2)),
    "Softmax": lambda m: m.nn.Softmax()(m.ones(2, 2)),
    "grid_sample": lambda m: m.nn.functional.grid_sample(m.ones(1, 1, 2, 2), m.zeros(1, 1, 1, 2)),
    "upsample": lambda m: m.nn.functional.upsample_nearest(m.ones(1, 1, 2, 2), 4),
}


@pytest.mark.parametrize("name", WARNED)
def test_functions_with_doors_warn_at_the_programs_line(name: str) -> None:
    import flambeau.overrides

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WARNED[name](flambeau)
    assert [w.filename for w in caught] == [__file__]


NEWS = """
import flambeau
class S:
    __torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: func.__name__)
try:
    flambeau.nn.functional.relu(S())
except TypeError as error:
    assert "Import torch.overrides first" in str(error), error
import flambeau.overrides
assert flambeau.nn.functional.relu(S()) == "relu"
assert flambeau.ones(2)[S()] == "__getitem__"
"""


def test_a_function_that_nobody_told_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", NEWS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


UNTOUCHED = """
import flambeau, numpy, flambeau._C
functions = [flambeau.add, flambeau.Tensor.__add__, flambeau.Tensor.reshape, flambeau.nn.functional.relu, flambeau.sum]
before = [f.__code__ for f in functions]
class P(flambeau.nn.Parameter): pass
class Net(flambeau.nn.Module): pass
flambeau.nn.Linear(2, 2)(flambeau.ones(1, 2)).sum().backward()
P(flambeau.ones(2)) + 1
for wrong in (lambda: flambeau.add(flambeau.ones(2), "text"), lambda: flambeau.sum([1]), lambda: flambeau.ones(2) + "text"):
    try:
        wrong()
    except TypeError:
        pass
assert [f.__code__ for f in functions] == before, "something has put doors before functions"
names = [f.__name__ for f in functions]
class T(flambeau.Tensor): pass
assert all(f.__code__ is not code for f, code in zip(functions, before))
assert functions == [flambeau.add, flambeau.Tensor.__add__, flambeau.Tensor.reshape, flambeau.nn.functional.relu, flambeau.sum]
assert [f.__name__ for f in functions] == names
assert type(functions[0](flambeau.ones(2), T(2))) is T
"""


def test_functions_are_what_they_are_until_a_class_overrides() -> None:
    """So programs without such classes pay nothing: see Note [Functions that tensors override]."""
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


MEANWHILE = """
import sys, threading
import flambeau
from flambeau.tensor.arguments import torch_function as overriding
x = flambeau.ones(2)
watched = {
    flambeau.add: lambda: flambeau.add(x, x), flambeau.cat: lambda: flambeau.cat([x, x]), flambeau.zeros: lambda: flambeau.zeros(2),
    flambeau.Tensor.__add__: lambda: x + x, flambeau.Tensor.shape.fget: lambda: x.shape,
}
failed, calls = [], 0
def other(call):
    try:
        call()
    except TypeError as error:
        failed.append(error)
def trace(frame, event, arg):
    return at_each_line if frame.f_code is overriding._put_door.__code__ else None
def at_each_line(frame, event, arg):
    global calls
    if event == "line" and (call := watched.get(frame.f_locals["function"])):
        calls += 1
        thread = threading.Thread(target=other, args=(call,))
        thread.start()
        thread.join()
    return at_each_line
sys.settrace(trace)
class T(flambeau.Tensor): pass
sys.settrace(None)
assert calls > 20, calls
assert not failed, failed
"""


def test_other_threads_may_call_a_function_while_it_gets_its_door() -> None:
    done = subprocess.run([sys.executable, "-c", MEANWHILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


FIRST_CALLS = {
    "m.add(t, s)": "add", "m.mul(s, 2)": "mul", "m.exp(s)": "exp", "m.mean(s)": "mean", "t.add(s)": "add",
    "t.mul(s)": "mul", "t.div(s)": "div", "t.matmul(s)": "matmul", "t + s": "add", "s * t": "mul", "s - t": "__rsub__",
    "t < s": "lt", "s / t": "__rdiv__", "s ** t": "__rpow__", "t ** s": "pow", "t.add_(s)": "add_", "t @ s": "matmul",
    "t.__iadd__(s)": "add_", "m.cat([t, s])": "cat", "t.mul_(s)": "mul_", "s @ t": "__rmatmul__", "m.linalg.norm(s)": "norm",
}  # fmt: skip
FIRST = f"""
import os
import flambeau as m
class S:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__
s, t = S(), m.ones(2)
for call in {list(FIRST_CALLS)}:
    if os.fork() == 0:
        print(eval(call), flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_object_that_is_no_tensor_is_asked_by_the_first_function_that_meets_it() -> None:
    """In a process each: of such a class nobody tells us."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == list(FIRST_CALLS.values()), done.stderr


def test_variables_of_all_frames_can_be_read_once_functions_ask() -> None:
    """As debuggers and IPython read them; a frame without its cells would end the process."""
    script = """
import sys
import flambeau as torch
class Asking(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs)
read = 0
for space in (torch, torch.Tensor, torch.nn.functional, torch.linalg, torch.special, torch.fft):
    for name, value in list(vars(space).items()):
        if callable(value) and not isinstance(value, type):
            try:
                value(object(), object(), object(), object(), object(), object(), object(), object(), object())
            except Exception as error:
                trace = error.__traceback__
                while trace is not None:
                    read += len(trace.tb_frame.f_locals) > 0
                    trace = trace.tb_next
assert read > 1000, read
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=300)


# -- functions that classes may override, and what stands for them in tests ---------------------------------------

WITHOUT_DOORS = {"torch._assert_async"}  # and collectives: they call no override
OTHER_ARGUMENTS = {  # PyTorch's functions take what Flambeau's take, not what its stand-ins show
    "torch.frobenius_norm", "torch.linalg.solve_triangular", "torch.native_layer_norm", "torch.segment_reduce",
    "torch.where", "torch.Tensor.where",
}  # fmt: skip


def _found(lib: Any, name: str) -> Any:
    for part in name.split(".")[1:]:
        lib = getattr(lib, part)
    return lib


def _has(name: str) -> bool:
    try:
        return bool(_found(flambeau, name))
    except AttributeError:
        return False


def test_testing_overrides_have_pytorchs_functions() -> None:
    ours, compared = flambeau.overrides.get_testing_overrides(), 0
    for function, stand_in in torch.overrides.get_testing_overrides().items():
        name = torch.overrides.resolve_name(function) or f"{function.__module__}.{function.__name__}"
        if name.startswith("torch.distributed") or name in WITHOUT_DOORS or not _has(name):
            continue
        override = ours[_found(flambeau, name)]
        if name in OTHER_ARGUMENTS:
            continue
        needed = [p for p in inspect.signature(stand_in).parameters.values() if p.default is p.empty]
        named = {p.name: 1 for p in needed if p.kind is p.KEYWORD_ONLY}
        values = [1 for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert override(*values, **named) == stand_in(*values, **named) == -1, name
        compared += 1
    assert compared > 1250
    with pytest.raises(TypeError, match="missing a required argument"):
        ours[flambeau.add](1)
    assert inspect.signature(ours[flambeau.add]) == inspect.signature(flambeau.add)


CALLS = {
    "torch.affine_grid_generator": lambda m, x: m.affine_grid_generator(x, [1, 1, 2, 2], False),
    "torch.frobenius_norm": lambda m, x: m.frobenius_norm(x, [0, 1]),
    "torch.is_signed": lambda m, x: m.is_signed(x),
    "torch.norm_except_dim": lambda m, x: m.norm_except_dim(x),
    "torch.nuclear_norm": lambda m, x: m.nuclear_norm(x),
    "torch.special.softmax": lambda m, x: m.special.softmax(x, 0),
    "torch.special.log_softmax": lambda m, x: m.special.log_softmax(x, 0),
    "torch.nn.init.uniform_": lambda m, x: m.nn.init.uniform_(x),
    "torch.nn.init.normal_": lambda m, x: m.nn.init.normal_(x),
    "torch.nn.init.constant_": lambda m, x: m.nn.init.constant_(x, 1.0),
    "torch.nn.init.kaiming_uniform_": lambda m, x: m.nn.init.kaiming_uniform_(x),
    "torch.sym_max": lambda m, x: m.sym_max(x, x),
    "torch.sym_sum": lambda m, x: m.sym_sum([x, x]),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_imported_on_first_use_are_overridden(name: str) -> None:
    for lib in (torch, flambeau):
        asked: list[Any] = []

        def record(
            cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None, asked: Any = asked
        ) -> int:
            asked.append(func)
            return -1

        kind = type("Recording", (lib.Tensor,), {})
        x = lib.ones(2, 3).as_subclass(kind)
        kind.__torch_function__ = classmethod(record)  # type: ignore[attr-defined]
        assert CALLS[name](lib, x) == -1
        assert [lib.overrides.resolve_name(func) for func in asked] == [name]
