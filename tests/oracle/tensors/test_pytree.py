"""torch.utils._pytree, torch.types and torch.compiler: what programs use of them says what PyTorch's says."""

from __future__ import annotations

import collections
import os
import typing
import warnings
from importlib import import_module
from typing import Any

import pytest
from support import torch

import flambeau

POINT = collections.namedtuple("POINT", "u v")
OTHER = collections.namedtuple("OTHER", "u v")


def tree(m: Any) -> Any:
    return {
        "b": [1, (2, 3)], "a": collections.OrderedDict(x=1), "c": None, "d": POINT(1, [2]), "g": m.Size([1, 2]),
        "e": collections.defaultdict(list, {"k": 1}), "f": collections.deque([1, 2], 3), "h": m.max(m.ones(2, 2), 0),
    }  # fmt: skip


class Pair:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __repr__(self) -> str:
        return f"Pair({self.a}, {self.b})"


class Keyed(Pair):
    pass


class Rows(list):  # no node: of a class that is not registered
    pass


def register(p: Any) -> None:
    if Pair not in p.SUPPORTED_NODES:
        p.register_pytree_node(Pair, lambda c: ([c.a, c.b], "ctx"), lambda xs, _: Pair(*xs))
        p.register_pytree_node(
            Keyed, lambda c: ([c.a, c.b], None), lambda xs, _: Keyed(*xs),
            flatten_with_keys_fn=lambda c: ([(p.GetAttrKey("a"), c.a), (p.GetAttrKey("b"), c.b)], None),
        )  # fmt: skip


def add(a: Any, b: Any) -> Any:
    return a + b


CALLS = {
    "leaves": lambda m, p: p.tree_leaves(tree(m)),
    "one by one": lambda m, p: list(p.tree_iter(tree(m))),
    "spec": lambda m, p: p.tree_structure(tree(m)),
    "spec of a leaf": lambda m, p: (p.tree_structure(1), p.treespec_leaf(), p.tree_structure(None).is_leaf()),
    "spec of nothing": lambda m, p: (p.tree_structure([]), p.tree_leaves({})),
    "figures": lambda m, p: [(s.num_leaves, s.num_nodes, s.num_children, s.type, s.context) for s in _specs(m, p)],
    "children": lambda m, p: (p.tree_structure(tree(m)).children(), p.tree_structure([1, [2]]).child(1)),
    "equal": lambda m, p: (p.tree_structure(tree(m)) == p.tree_structure(tree(m)), p.tree_structure([1]) == p.tree_structure((1,))),
    "hashes": lambda m, p: hash(p.tree_structure(tree(m))) == hash(p.tree_structure(tree(m))),
    "made by hand": lambda m, p: p.TreeSpec(list, None, [p.treespec_leaf()]) == p.tree_structure([5]),
    "together": lambda m, p: p.tree_unflatten(*p.tree_flatten(tree(m))),
    "maxlen": lambda m, p: p.tree_map(str, tree(m))["f"].maxlen,
    "default": lambda m, p: p.tree_map(str, tree(m))["e"]["new"],
    "map": lambda m, p: p.tree_map(lambda x: (x, 1), tree(m)),
    "map of two": lambda m, p: p.tree_map(add, {"a": 1, "b": [2]}, {"b": [20], "a": 10}),
    "map of other mappings": lambda m, p: p.tree_map(add, {"a": 1}, collections.OrderedDict(a=2)),
    "map of lengths": lambda m, p: p.tree_map(add, [1, 2], [1]),
    "map of types": lambda m, p: p.tree_map(add, [1, 2], (1, 2)),
    "map of a leaf": lambda m, p: p.tree_map(add, [1], 3),
    "map of keys": lambda m, p: p.tree_map(add, {"a": 1}, {"b": 1}),
    "map of more keys": lambda m, p: p.tree_map(add, {"a": 1}, {"a": 1, "b": 1}),
    "map of deques": lambda m, p: p.tree_map(add, collections.deque([1]), collections.deque([3], 4)),
    "map of deeper trees": lambda m, p: p.tree_map(lambda a, b: (a, b), [1, 2], [[1], (2,)]),
    "map until": lambda m, p: p.tree_map(len, [[1], [2, [3]]], is_leaf=lambda x: isinstance(x, list) and x[0] != [1]),
    "map in place": lambda m, p: p.tree_map_(lambda t: t.add_(1), [m.ones(1)]),
    "map only": lambda m, p: p.tree_map_only(int, lambda x: x + 1, [1, "a", (2.0, True)]),
    "map only of two": lambda m, p: p.tree_map_only((int, float), lambda x: x + 1, [1, "a", 2.0]),
    "map only of a union": lambda m, p: p.tree_map_only(int | str, lambda x: 0, [1, "a", 2.0]),
    "map only where": lambda m, p: p.tree_map_only(lambda x: x == "a", lambda x: "z", [1, "a"]),
    "map only tensors": lambda m, p: p.tree_map_only(m.Tensor, lambda t: t * 2, [m.ones(2), 3]),
    "map only in place": lambda m, p: p.tree_map_only_(m.Tensor, lambda t: t.zero_(), (m.ones(2), 3)),
    "map only of a number": lambda m, p: p.tree_map_only(3, lambda x: x, [1]),
    "all and any": lambda m, p: (p.tree_all(bool, [1, 0]), p.tree_any(bool, [1, 0]), p.tree_all_only(int, bool, [1, ""]), p.tree_any_only(str, bool, [1, ""])),
    "too few": lambda m, p: p.tree_unflatten([1], p.tree_structure([1, 2])),
    "too many": lambda m, p: p.tree_unflatten([1, 2, 3], p.tree_structure([1, (2,)])),
    "no spec": lambda m, p: p.tree_unflatten([1], 3),
    "is it a leaf": lambda m, p: [p.tree_is_leaf(x) for x in ([], 1, None, (), "ab", Rows([1]), m.ones(2), POINT(1, 2))],
    "unregistered": lambda m, p: p.tree_leaves(Rows([1, 2])),
    "registered": lambda m, p: (p.tree_structure(Pair(1, [2])), p.tree_map(lambda x: x * 2, Pair(1, [2]))),
    "registered again": lambda m, p: p.register_pytree_node(list, None, None),
    "paths": lambda m, p: [(p.keystr(path), leaf) for path, leaf in p.tree_flatten_with_path(tree(m))[0]],
    "paths of attributes": lambda m, p: [(p.keystr(path), leaf) for path, leaf in p.tree_leaves_with_path([Keyed(1, 2)])],
    "along a path": lambda m, p: p.key_get(tree(m), p.tree_leaves_with_path(tree(m))[2][0]),
    "keys": lambda m, p: (p.SequenceKey(1), p.MappingKey("x"), p.GetAttrKey("n"), str(p.SequenceKey(1)), str(p.GetAttrKey("n"))),
    "no keys": lambda m, p: p.tree_flatten_with_path(Pair(1, 2)),
    "map with paths": lambda m, p: p.tree_map_with_path(lambda k, v: (p.keystr(k), v), {"a": [1]}),
    "up to": lambda m, p: p.tree_structure([1, (2, 3)]).flatten_up_to([[1], ({}, "x")]),
    "broadcast": lambda m, p: [p._broadcast_to_and_flatten(x, p.tree_structure([1, [2, 3]])) for x in (1, [1, 2], [1], (1, 2), [1, [2, 3]])],
    "of arguments": lambda m, p: p.arg_tree_leaves(1, [2], k={"a": 3}),
    "named tuples": lambda m, p: [p.is_namedtuple(x) for x in (POINT, POINT(1, 2), (1, 2), tuple)],
    "instances of named tuples": lambda m, p: (p.is_namedtuple_instance(POINT(1, 2)), p.is_namedtuple_class(POINT(1, 2))),
    "return types": lambda m, p: [p.is_structseq(x) for x in (m.max(m.ones(1), 0), (1,), tuple)],
    "printed": lambda m, p: p.treespec_pprint(p.tree_structure([1, {"a": (2, 3)}])),
    "definitions": lambda m, p: (p.SUPPORTED_NODES[tuple].flatten_fn((1, 2)), p.SUPPORTED_NODES[dict].unflatten_fn([1], ["a"])),
}  # fmt: skip


def _specs(m: Any, p: Any) -> list[Any]:
    return [p.tree_structure(x) for x in (1, [1], (1, {"a": 2}), collections.deque([1], 4), POINT(1, 2))]


@pytest.mark.parametrize("name", CALLS)
def test_trees(name: str) -> None:
    told = []
    for room in (torch, flambeau):
        p = import_module(f"{room.__name__}.utils._pytree")
        register(p)
        try:
            told.append(repr(CALLS[name](room, p)))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    assert told[1] == told[0]


def test_absent_names_of_trees_are_said_to_be_absent() -> None:
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        flambeau.utils._pytree.KeyEntry  # noqa: B018


# -- torch.types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Number", "_Number", "FileLike", "_int", "_bool", "_float", "_str", "_bytes", "_complex"]
)
def test_types_that_are_pythons_are_the_same(name: str) -> None:
    assert getattr(flambeau.types, name) == getattr(torch.types, name)


def test_types_of_arguments() -> None:
    assert isinstance(True, flambeau.types.Number)
    assert isinstance(flambeau.device("cpu"), flambeau.types.Device)
    assert isinstance(None, flambeau.types.Device)
    assert isinstance(flambeau.Size([1]), typing.get_args(flambeau.types._size)[0])
    assert isinstance(flambeau.ones(1).untyped_storage(), flambeau.types.Storage)
    assert typing.get_args(flambeau.types._TensorOrTensors)[0] is flambeau.Tensor
    assert set(torch.types.__all__) == set(flambeau.types.__all__)
    assert os.PathLike[str] in typing.get_args(flambeau.types.FileLike)


# -- torch.compiler -------------------------------------------------------------------------------------

COMPILER = {
    "is_compiling": lambda c: (c.is_compiling(), c.is_dynamo_compiling(), c.is_exporting()),
    "disable": lambda c: c.disable(lambda x: x + 1)(2),
    "disable with arguments": lambda c: c.disable(recursive=False)(lambda x: x + 1)(2),
    "disable for a reason": lambda c: c.disable(reason="why")(lambda x: x + 1)(2),
    "allow_in_graph": lambda c: c.allow_in_graph(len)([1]),
    "allow_in_graph of several": lambda c: c.allow_in_graph([len, abs]),
    "assume_constant_result": lambda c: c.assume_constant_result(_seven)(),
    "a step": lambda c: c.cudagraph_mark_step_begin(),
    "reset": lambda c: c.reset(),
}


def _seven() -> int:
    return 7


@pytest.mark.parametrize("name", COMPILER)
def test_what_is_true_without_a_compiler(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert COMPILER[name](flambeau.compiler) == COMPILER[name](torch.compiler)


def test_disable_keeps_modules_and_methods() -> None:
    class Net(flambeau.nn.Module):
        @flambeau.compiler.disable
        def forward(self, x: Any) -> Any:
            return x * 2

    assert Net()(flambeau.ones(1)).item() == 2.0
