"""Every record of the operator table: the same bits on a virtual device as on the CPU, in every layout."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from seeds import EXHAUSTIVE, session_seed

import flambeau
from flambeau.core.dtype import complex128, float32, float64, int64
from flambeau.driver.protocol import Routine
from flambeau.ops.op import Op, table
from flambeau.tensor.call import call
from flambeau.testing.operator_properties import UNSAMPLED, cases, check_virtual, maker, summary

SAMPLED = sorted(set(table) - set(UNSAMPLED))


@pytest.fixture(scope="module")
def where():
    with flambeau.virtual(devices=1, profile="v100"):  # no TF32: its float32 products are the CPU's
        yield flambeau.device("cuda:0")


@pytest.mark.parametrize("name", SAMPLED)
def test_a_virtual_device_computes_the_same_bits(name, where):
    op = table[name]
    kinds = op.dtypes if EXHAUSTIVE else op.dtypes[session_seed() % 2 :: 2]  # each day others
    for kind in kinds or op.dtypes:
        compared = check_virtual(op, kind, where)
        assert compared >= 2 or (name in ("matmul", "addmm") and not kind.is_floating_point), kind


def test_every_record_has_samples_of_every_dtype_or_a_reason():
    lacking = {op.name for op, kind in cases() if not list(op.samples(maker(kind, 0), kind))}
    assert lacking == set(UNSAMPLED)
    assert all(len(reason) > 20 for reason in UNSAMPLED.values())


def test_every_record_takes_a_dtype_and_says_what_it_is():
    for name, op in table.items():
        assert op.dtypes, name
        assert op.kernel.name, name
        assert name == op.name


CUDA = Path(flambeau.__file__).parent / "driver" / "cuda"


def names_at_top(module: str) -> set[str]:
    """Names that a module of the CUDA driver defines, from its text: CUDA's packages may be missing here."""
    tree = ast.parse(CUDA.joinpath(*module.split(".")).with_suffix(".py").read_text())
    targets = {getattr(node.targets[0], "id", "") for node in tree.body if isinstance(node, ast.Assign)}
    return targets | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", [name for name, op in table.items() if isinstance(op.kernel.cuda, Routine)])
def test_a_routine_names_functions_of_the_cuda_driver(name):
    routine = table[name].kernel.cuda
    paths = [path for path in (routine.builder, routine.library) if path]
    assert paths
    for path in paths:
        module, _, function = path.partition(":")
        assert function in names_at_top(module), path


@pytest.mark.parametrize("name", [name for name, op in table.items() if op.derivative.linear])
def test_an_operator_that_says_it_is_linear_is(name):
    op = table[name]
    kind = next(d for d in (float64, complex128) if d in op.dtypes)
    pairs = zip(op.samples(maker(kind, 1), kind), op.samples(maker(kind, 2), kind), strict=True)
    compared = 0
    for (first, params), (second, _) in pairs:
        floats = [i for i, x in enumerate(first) if getattr(x, "dtype", None) == kind.numpy]
        for chosen in [floats] if op.derivative.linear == "together" else [[i] for i in floats]:
            other = [second[i] if i in chosen else x for i, x in enumerate(first)]
            both = [
                np.asarray(2 * x - 3 * y) if i in chosen else x
                for i, (x, y) in enumerate(zip(first, other, strict=True))
            ]
            a, b, c = (_result(op, inputs, params) for inputs in (first, other, both))
            if a.dtype.name in ("float64", "complex128"):
                np.testing.assert_allclose(c, 2 * a - 3 * b, rtol=1e-9, atol=1e-9)
                compared += 1
    assert compared


def _result(op, inputs, params):
    tensors = [flambeau.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in inputs]
    found = call(op, tensors, params)
    return (found[0] if isinstance(found, tuple) else found).numpy()


def test_the_table_is_counted():
    operators, pairs = len(table), len(list(cases()))
    assert operators >= 180
    assert pairs >= 2000
    assert summary() == f"{operators} operators, {pairs} pairs of operator and dtype"


def test_samples_repeat_and_differ_by_seed():
    first, again, other = (maker(float32, seed)(4, 4) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_a_wrong_device_body_is_found(where):
    """The check itself can fail: a record whose body depends on the device is caught."""
    honest = table["neg"]

    def host(launch):
        body = honest.kernel.host(launch)

        def wrong(outputs, inputs):
            body(outputs, inputs)
            if launch.capability is not None and outputs[0].size:
                outputs[0][(0,) * outputs[0].ndim] = 99

        return wrong

    op = Op(
        "wrong",
        honest.rule,
        type(honest.kernel)("wrong", host),
        (float32,),
        honest.samples,
        flags=honest.flags,
    )
    with pytest.raises(AssertionError, match=r"wrong.*cuda:0 and the CPU differ"):
        check_virtual(op, float32, where)


def test_a_refusal_on_one_side_alone_is_found(where):
    honest = table["neg"]

    def rule(operands, params):
        if any(x.device is where and x.ndim == 0 for x in operands):
            raise IndexError("no 0-dim tensors here")
        return honest.rule(operands, params)

    op = Op("picky", rule, honest.kernel, (int64,), honest.samples, flags=honest.flags)
    with pytest.raises((AssertionError, IndexError)):
        check_virtual(op, int64, where)


@pytest.mark.parametrize("zero", [0, np.int64(0)])
@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8"])
def test_integers_by_zero_on_a_gpu_give_what_nvidia_gpus_give(name, zero, where):
    kind = getattr(flambeau, name)
    x = flambeau.tensor([5, 0, 7] if name == "uint8" else [5, 0, -7], dtype=kind, device=where)
    ones = 255 if name == "uint8" else -1
    want = [2**32 - 1, 2**32 - 1, -1] if name == "int64" else [ones] * 3
    for got in (x // zero, flambeau.div(x, zero, rounding_mode="trunc"), x % zero, flambeau.fmod(x, zero)):
        assert got.tolist() == want
        assert got.dtype is kind
    assert (x // flambeau.tensor([2, 0, 2], dtype=kind, device=where)).tolist()[1] == want[1]


def test_integers_by_zero_on_the_cpu_raise_and_change_nothing():
    x = flambeau.tensor([5, 0, -7])
    for divide in (x.floor_divide_, x.remainder_, x.fmod_):
        with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
            divide(flambeau.tensor([1, 0, 1]))
    assert x.tolist() == [5, 0, -7]
    assert x._version == 0


def test_call_of_an_unbound_record_refuses_other_devices(where):
    a, b = flambeau.ones(2, device=where), flambeau.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        call(table["add"], (a, b))
