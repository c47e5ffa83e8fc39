"""Meshes of ranks beside PyTorch's own, in four processes with gloo; and their layouts beside NumPy."""

from __future__ import annotations

import inspect
import warnings
from itertools import product

import mesh_cases
import numpy as np
import oracle_ranks
import pytest
import torch as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

import flambeau
import flambeau.distributed
from flambeau.distributed import device_mesh, mesh_layout
from flambeau.distributed.world import world
from flambeau.testing.ranks import ranks

SIZE = 4


@pytest.fixture(scope="module")
def both():
    theirs = oracle_ranks.pytorchs("mesh_cases")
    return theirs, ranks(oracle_ranks.answers, SIZE, flambeau, "mesh_cases", "cpu", "gloo")


@pytest.mark.parametrize("case", mesh_cases.CASES)
def test_meshes(both, case):
    theirs, mine = ([rank[case] for rank in library] for library in both)
    assert mine == theirs
    assert all(kind == "value" for kind, *_ in theirs)


@pytest.mark.parametrize("name", ["get_group", "get_local_rank", "size", "from_group", "__getitem__"])
def test_signatures_are_pytorchs(name):
    mine, theirs = (getattr(d.DeviceMesh, name) for d in (flambeau.distributed, oracle.distributed))
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
    made = (d.init_device_mesh for d in (flambeau.distributed, oracle.distributed))
    assert len({tuple(inspect.signature(one).parameters) for one in made}) == 1


def public(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


def test_names_are_pytorchs():
    assert public(flambeau.distributed.DeviceMesh) == public(oracle.distributed.device_mesh.DeviceMesh)


shapes = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(shapes, st.data())
def test_slices_are_numpys(shape, data):
    """The copies of some dimensions are the array with these last, the others flat before them."""
    count = int(np.prod(shape))
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(shape))))))
    others = [d for d in range(len(shape)) if d not in chosen]
    whole = np.arange(count).reshape(shape).transpose(others + chosen)
    size = int(np.prod([shape[d] for d in chosen]))
    axes = mesh_layout.row_major(shape)
    joined = mesh_layout.join_axes([axes[d] for d in chosen])
    assert mesh_layout.tiles(joined, count) == whole.reshape(-1, size).tolist()
    assert mesh_layout.apart(joined) and mesh_layout.in_order(joined)
    assert mesh_layout.length(joined) == size


@settings(max_examples=100, deadline=None)
@given(shapes)
def test_an_axis_split_and_joined_is_itself(sizes):
    whole = mesh_layout.axis([(int(np.prod(sizes)), 2)])
    parts = mesh_layout.split(whole, sizes)
    assert [mesh_layout.length(part) for part in parts] == sizes
    assert mesh_layout.join_axes(parts) == whole
    places = [
        sum(i * part[0][1] for i, part in zip(at, parts, strict=True) if part)
        for at in product(*map(range, sizes))
    ]
    assert places == list(range(0, 2 * len(places), 2))


def test_an_axis_of_pieces_is_split_at_its_pieces():
    pieces = mesh_layout.join_axes([((2, 12),), ((3, 1),)])
    assert mesh_layout.split(pieces, [2, 3]) == [((2, 12),), ((3, 1),)]
    assert mesh_layout.split(pieces, [1, 6]) == [(), pieces]
    with pytest.raises(AssertionError, match="cannot be split into"):
        mesh_layout.split(pieces, [3, 2])


def on_gpus():
    d = flambeau.distributed
    mesh = d.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    found = []
    for name in ("dp", "tp"):
        t = flambeau.full((2,), 10.0 ** d.get_rank(), device="cuda")
        d.all_reduce(t, group=mesh[name].get_group())
        found.append(t[0].item())
    return str(d.get_backend()), d.get_backend(mesh.get_group("tp")), flambeau.cuda.current_device(), found


@pytest.mark.parametrize("schedule", ["earliest", "random:2"])
def test_a_mesh_makes_the_group_of_all_ranks(schedule):
    found = ranks(on_gpus, SIZE, races="error", schedule=schedule)
    assert [device for _, _, device, _ in found] == [0, 1, 2, 3]
    assert [sums for *_, sums in found] == [[101.0, 11.0], [1010.0, 11.0], [101.0, 1100.0], [1010.0, 1100.0]]
    assert {str(word) for _, word, _, _ in found} == {"undefined"}


def given_up():
    d = flambeau.distributed
    d.init_process_group("gloo")
    mesh = d.init_device_mesh("cpu", (2, 1))
    d.destroy_process_group(mesh.get_group(1))
    with pytest.raises(RuntimeError, match="Could not resolve the process group registered under the name"):
        mesh.get_group(1)


def test_a_group_that_was_given_up():
    ranks(given_up, 2)


def chosen(monkeypatch, local):
    """The device that a mesh selects where CUDA was not used so far."""
    d = flambeau.distributed
    flambeau.cuda.set_device(3 - int(world().environment["RANK"]))
    monkeypatch.setattr(device_mesh.system, "is_initialized", lambda: False)
    environment = dict(world().environment)
    world().environment = environment
    environment.pop("LOCAL_RANK") if local is None else environment.update(LOCAL_RANK=str(local))
    d.init_device_mesh("cpu", (2,))
    assert flambeau.cuda.current_device() == 3 - d.get_rank()
    if local is None:
        with pytest.warns(UserWarning, match="DeviceMesh will use a heuristic"):
            d.init_device_mesh("cuda", (2,))
    else:
        d.init_device_mesh("cuda", (2,))
    return flambeau.cuda.current_device()


def test_a_mesh_selects_a_device_where_the_program_has_not(monkeypatch):
    with flambeau.virtual(devices=4):
        assert ranks(chosen, 2, monkeypatch, 2) == [2, 2]
        assert ranks(chosen, 2, monkeypatch, None) == [0, 1]
    with pytest.raises(RuntimeError, match="found 3 ranks and 2 cuda devices"):
        ranks(unfit, 3, monkeypatch)


def unfit(monkeypatch):
    monkeypatch.setattr(device_mesh.system, "is_initialized", lambda: False)
    monkeypatch.setattr(device_mesh.system, "device_count", lambda: 2)
    world().environment = {**world().environment}
    del world().environment["LOCAL_RANK"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flambeau.distributed.init_device_mesh("cuda", (3,))
