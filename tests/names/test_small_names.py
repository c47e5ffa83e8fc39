"""Small names that libraries use, beside PyTorch: checks, symbolic numbers, torch.functional, states of devices."""

from __future__ import annotations

import collections
import importlib
import inspect

import pytest
import torch

import flambeau

CALLS = [
    *[f"_check({each})" for each in ("True", "False", "False, lambda: 'x'", "False, 'x'", "1", "None")],
    *[f"_check_{kind}(False)" for kind in ("index", "value", "type", "not_implemented")],
    "_check(t.tensor(True))", "_check_with(KeyError, False, lambda: 'q')", "_check_is_size(-1)", "_check_is_size(3)",
    "_check_is_size(3, max=2)", "_check_is_size(2, max=2)", "_check_tensor_all(t.tensor([True, False]))",
    "_check_tensor_all(t.tensor([True, True]))", "_check_tensor_all(t.tensor([1]))", "_check_tensor_all(True)",
    "_check_tensor_all_with(ValueError, t.tensor([False]), lambda: 'z')", "sym_int(3.7)", "sym_int(-3.7)",
    "sym_float(3)", "sym_max(1, 2.5)", "sym_max(3, 2.5)", "sym_max(1, 2)", "sym_min(1, 2.5)", "sym_min(1, 0)",
    "sym_not(True)", "sym_not(1)", "sym_ite(True, 1, 2)", "sym_ite(1, 2, 3)", "sym_ite(True, 1, 2.0)",
    "sym_sum([1, 2, 3])", "sym_sum([1, 2.5])", "sym_sqrt(4)", "sym_max('a', 1)", "_assert_async(t.tensor(False))",
    "_assert_async(t.tensor(True))", "_assert_async(t.tensor([True, False]))", "_assert_async(t.tensor(0.0), 'msg')",
]  # fmt: skip


def outcome(m, call):
    try:
        return repr(eval(f"t.{call}", {"t": m}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.filterwarnings("ignore:_check_is_size")
@pytest.mark.parametrize("call", CALLS)
def test_calls_give_what_pytorchs_give(call):
    assert outcome(flambeau, call) == outcome(torch, call)


def test_nothing_is_a_symbolic_number():
    for name in ("SymInt", "SymFloat", "SymBool"):
        assert not isinstance(3, getattr(flambeau, name))
        with pytest.raises(flambeau.NotSupportedError, match=name):
            getattr(flambeau, name)(3)


def test_torch_functional_shows_the_functions_of_torch():
    assert all(
        getattr(flambeau.functional, name) is getattr(flambeau, name) for name in torch.functional.__all__
    )
    assert not hasattr(flambeau.functional, "relu")


PLACES = {
    "_C": ("_TensorMeta", "PyTorchFileReader", "_log_api_usage_once"),
    "serialization": ("DEFAULT_PROTOCOL", "MAP_LOCATION"),
    "utils.checkpoint": ("CheckpointPolicy", "create_selective_checkpoint_contexts", "get_device_states", "set_device_states"),
    "utils.data.dataloader": (
        "_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter", "_DatasetKind", "_collate_fn_t",
    ),
    "utils.data._utils.collate": ("np_str_obj_array_pattern",),
    "backends.mkldnn": ("is_available", "enabled"),
    "backends.opt_einsum": ("is_available", "get_opt_einsum", "enabled", "strategy"),
    "distributed.tensor._utils": ("compute_local_shape_and_global_offset",),
    "utils.flop_counter": ("FlopCounterMode", "register_flop_formula"),
    "_dynamo._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_names_are_in_pytorchs_places(place):
    ours, theirs = (importlib.import_module(f"{m}.{place}") for m in ("flambeau", "torch"))
    for name in PLACES[place]:
        assert inspect.isclass(getattr(ours, name)) == inspect.isclass(getattr(theirs, name)), name


def test_iterators_of_loaders_are_of_pytorchs_classes():
    from flambeau.utils.data import DataLoader
    from flambeau.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

    assert (
        type(iter(DataLoader(range(4)))).__name__
        == type(iter(torch.utils.data.DataLoader(range(4)))).__name__
    )
    several = iter(DataLoader(range(4), num_workers=1))
    assert isinstance(several, _MultiProcessingDataLoaderIter) and isinstance(several, _BaseDataLoaderIter)
    assert [int(x) for x in several] == [0, 1, 2, 3]


def test_states_of_devices_are_set_again():
    from flambeau.utils.checkpoint import get_device_states, set_device_states

    with flambeau.virtual(2):
        x = flambeau.ones(1, device="cuda:1")
        states = get_device_states(x, flambeau.ones(1), 3)
        assert states[0] == [1]
        first = flambeau.rand(3, device="cuda:1")
        set_device_states(*states)
        assert (flambeau.rand(3, device="cuda:1") == first).all()


@pytest.mark.parametrize("call", [
    "x.split(split_size=[2, 4])", "x.split(split_size=2)", "t.split(x, split_size_or_sections=[2, 4])",
    "t.split(tensor=x, split_size_or_sections=(2, 4), dim=0)", "x.split_with_sizes(split_sizes=[2, 4])",
    "t.tensor_split(x, indices=(1, 2))", "t.tensor_split(input=x, sections=2)",
])  # fmt: skip
def test_parts_are_asked_for_by_every_name(call):
    ours, theirs = (
        [part.tolist() for part in eval(call, {"t": m, "x": m.arange(6)})] for m in (flambeau, torch)
    )
    assert ours == theirs


def test_pytree_has_the_functions_of_its_kinds():
    from flambeau.utils import _pytree as ours

    theirs = importlib.import_module("torch.utils._pytree")
    for m in (ours, theirs):
        assert m._dict_unflatten(*m._dict_flatten({"b": 1, "a": 2})) == {"b": 1, "a": 2}
        assert m._list_unflatten(*m._list_flatten([1, 2])) == [1, 2]
        point = m.namedtuple("Point", "x y")(3, 4)
        assert m._namedtuple_unflatten(*m._namedtuple_flatten(point)) == point
    assert repr(ours._dict_flatten_with_keys({"b": 1})) == repr(theirs._dict_flatten_with_keys({"b": 1}))
    assert repr(ours._list_flatten_with_keys([5])) == repr(theirs._list_flatten_with_keys([5]))
    assert [ours._get_node_type(x) for x in ({}, 3, [])] == [theirs._get_node_type(x) for x in ({}, 3, [])]


def test_layouts_are_values():
    for name in (
        "strided",
        "sparse_coo",
        "sparse_csr",
        "sparse_csc",
        "sparse_bsr",
        "sparse_bsc",
        "jagged",
        "_mkldnn",
    ):
        assert repr(getattr(flambeau, name)) == repr(getattr(torch, name))
        assert isinstance(getattr(flambeau, name), flambeau.layout)


def test_masks_of_flex_attention_are_pytorchs():
    from flambeau.nn.attention import flex_attention as ours

    theirs = importlib.import_module("torch.nn.attention.flex_attention")

    def masks(m):
        causal, near = (lambda b, h, q, kv: q >= kv), (lambda b, h, q, kv: (q - kv).abs() < 2 + h)
        made = (
            causal,
            near,
            m.and_masks(causal, near),
            m.or_masks(causal, near),
            m.and_masks(m.noop_mask, near),
        )
        return [m.create_mask(each, 2, 3, 4, 5, device="cpu").tolist() for each in made]

    assert masks(ours) == masks(theirs)
    with pytest.raises(RuntimeError, match="callable mask_mods"):
        ours.or_masks(1)


def test_more_names_are_in_pytorchs_places():
    for place, name in [
        ("hub", "HASH_REGEX"), ("nn.modules.module", "_EXTRA_STATE_KEY_SUFFIX"), ("_C", "_get_tracing_state"),
        ("profiler", "kineto_available"), ("distributed._tensor.experimental", "implicit_replication"),
    ]:  # fmt: skip
        ours, theirs = (getattr(importlib.import_module(f"{m}.{place}"), name) for m in ("flambeau", "torch"))
        assert callable(ours) == callable(theirs), name
    assert (
        flambeau.nn.modules.module._EXTRA_STATE_KEY_SUFFIX == torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX
    )
    assert flambeau.hub.HASH_REGEX == torch.hub.HASH_REGEX


@pytest.mark.parametrize("call", [
    "t.float16", "'cpu', t.float64", "dtype=t.int8", "t.ones(1)", "'cpu', None, True", "", "memory_format=t.channels_last",
])  # fmt: skip
def test_arguments_of_to_are_read_as_pytorch_reads_them(call):
    ours, theirs = (repr(eval(f"t._C._nn._parse_to({call})", {"t": m})) for m in (flambeau, torch))
    assert ours == theirs


def test_an_optimizer_around_another_one_hooks_its_step():
    def steps(m):
        class Around(m.optim.Optimizer):
            def __init__(self, inner):
                self._optimizer_step_pre_hooks = collections.OrderedDict()
                self._optimizer_step_post_hooks = collections.OrderedDict()
                self.inner, self.defaults, self.state, self.param_groups = inner, {}, {}, inner.param_groups
                self._patch_step_function()

            def step(self, closure=None):
                return self.inner.step(closure)

        weight = m.nn.Parameter(m.ones(2))
        around, seen = Around(m.optim.SGD([weight], 0.5)), []
        around.register_step_pre_hook(lambda *_: seen.append("before"))
        around.register_step_post_hook(lambda *_: seen.append("after"))
        weight.sum().backward()
        around.step()
        return seen, weight.tolist(), around._zero_grad_profile_name

    assert steps(flambeau) == steps(torch)
