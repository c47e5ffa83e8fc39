"""Cases of `distributed.device_mesh` on four ranks: what can be asked of meshes, their slices and their groups."""

from __future__ import annotations

import pickle
from itertools import permutations


def told(torch, mesh):
    """All that can be asked of a mesh."""
    d = torch.distributed
    groups = mesh.get_all_groups() if mesh.get_coordinate() is not None else []
    return [
        repr(mesh), mesh.mesh.tolist(), mesh.mesh.dtype, mesh.mesh.device, mesh.shape, mesh.ndim, mesh.size(),
        [mesh.size(i) for i in range(mesh.ndim)], mesh.mesh_dim_names, mesh.device_type, mesh.get_rank(),
        mesh.get_coordinate(),
        [[d.get_process_group_ranks(g), g.group_desc, d.get_rank(g), g.group_name] for g in groups],
        [mesh.get_local_rank(i) for i in range(mesh.ndim)] if groups else None,
        [summed(torch, group) for group in groups],
    ]  # fmt: skip


def summed(torch, group):
    t = torch.tensor([float(10 ** torch.distributed.get_rank())])
    torch.distributed.all_reduce(t, group=group)
    return t.item()


def said(torch, *calls):
    """What each call gives, or raises."""
    found = []
    for call in calls:
        try:
            given = call()
            found.append(repr(given) if type(given).__name__ in ("DeviceMesh", "tuple") else str(given))
        except Exception as error:
            found.append([type(error).__name__, str(error).replace("flambeau", "torch")])
    return found


def line(torch, device):
    return told(torch, torch.distributed.init_device_mesh("cpu", (4,)))


def named(torch, device):
    return told(torch, torch.distributed.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)))


def square(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    by_name = [
        mesh.get_group("dp") is mesh.get_group(0),
        mesh.get_local_rank("tp"),
        mesh["dp"].get_local_rank(),
    ]
    same = [
        mesh["dp"] == mesh["dp"],
        mesh["dp"] == mesh["tp"],
        hash(mesh["dp"]) == hash(mesh["dp"]),
        mesh == 3,
    ]
    whole = [mesh["dp", "tp"] is mesh, mesh["dp"].get_group() is mesh.get_group("dp")]
    return [told(torch, mesh), told(torch, mesh["dp"]), told(torch, mesh["tp"]), by_name, same, whole]


def without_names(torch, device):
    return told(torch, torch.distributed.init_device_mesh("cpu", (2, 2)))


def of_ones(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (1, 4, 1), mesh_dim_names=("pp", "dp", "tp"))
    return [told(torch, mesh), told(torch, mesh["pp", "tp"]), told(torch, mesh["dp"])]


def by_hand(torch, device):
    mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("a", "b"))
    return [told(torch, mesh), told(torch, mesh["a"]), told(torch, mesh["b"])]


def of_a_tensor(torch, device):
    ranks = torch.arange(4).reshape(2, 2).t()
    return told(torch, torch.distributed.DeviceMesh("cpu", ranks))


def of_some_ranks(torch, device):
    mesh = torch.distributed.DeviceMesh("cpu", [1, 3], mesh_dim_names=("x",))
    return told(torch, mesh)


def cube(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    names = mesh.mesh_dim_names
    slices = [order for count in (1, 2, 3) for order in permutations(names, count)]
    return [told(torch, mesh), *said(torch, *[lambda order=order: mesh[order] for order in slices])]


def flattened(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    flat = mesh._flatten()
    again, other = mesh._flatten(), mesh._flatten("other")
    dp = mesh["dp"]
    return [
        told(torch, flat), flat is again, told(torch, other), dp._flatten() is dp, told(torch, mesh["dp_tp"]),
        mesh.get_group("dp_tp") is flat.get_group(), flat == again, other == flat,
        *said(torch, lambda: mesh._flatten("dp"), lambda: dp._flatten("dp_tp"), lambda: mesh["dp", "dp_tp"],
              lambda: mesh["dp"]._flatten("d2")),
    ]  # fmt: skip


def flattened_apart(torch, device):
    """Dimensions between which another lies."""
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    outer = mesh["a", "c"]._flatten("ac")
    return [told(torch, outer), told(torch, mesh["b", "c"]._flatten())]


def unflattened(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    made = mesh._unflatten(0, (2, 2), ("dp", "tp"))
    return [
        told(torch, made), told(torch, made["tp"]), told(torch, mesh._unflatten("world", (4, 1), ("x", "y"))),
        *said(torch, lambda: mesh._unflatten(1, (2,), ("a",)), lambda: mesh._unflatten("z", (2,), ("a",)),
              lambda: mesh._unflatten(0, (2, 2), ("a",)), lambda: mesh._unflatten(0, (2, 3), ("a", "b"))),
    ]  # fmt: skip


def from_groups(torch, device):
    d = torch.distributed
    rows, columns = d.new_subgroups(2)[0], None
    for ranks in ([0, 2], [1, 3]):
        group = d.new_group(ranks)
        columns = group if d.get_rank() in ranks else columns
    make = d.DeviceMesh.from_group
    mesh = make([columns, rows], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("a", "b"))
    return [
        told(torch, make(rows, "cpu")), told(torch, mesh), told(torch, mesh["b"]),
        told(torch, make(d.group.WORLD, "cpu", torch.arange(4), mesh_dim_names=("w",))),
        make([rows], "cpu", d.get_process_group_ranks(rows), mesh_dim_names=("r",)).get_group() is rows,
        *said(torch, lambda: make([], "cpu"), lambda: make([rows, columns], "cpu"), lambda: make(d.group.WORLD, "cpu", [0]),
              lambda: make([rows, columns], "cpu", [[0, 1], [2, 3]]),
              lambda: make([rows, columns], "cpu", [0, 1], mesh_dim_names=("a", "b"))),
    ]  # fmt: skip


def refused(torch, device):
    d = torch.distributed
    init = d.init_device_mesh
    plain, mesh = init("cpu", (2, 2)), init("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return said(
        torch,
        lambda: init("cpu", (2, 2), mesh_dim_names=("a", "a")), lambda: init("cpu", (2, 2), mesh_dim_names=("a",)),
        lambda: init("cpu:0", (4,)), lambda: init("cpu", (5,)), lambda: init("cpu", (2, 4)), lambda: plain["dp"],
        lambda: mesh["pp"], lambda: mesh["tp", "dp"], lambda: mesh.get_group(), lambda: mesh.get_local_rank(),
        lambda: mesh.get_group("x"), lambda: plain.get_group("x"), lambda: mesh.get_local_rank("x"),
        lambda: d.DeviceMesh("cpu"), lambda: plain._flatten(), lambda: mesh.get_group(1.5), lambda: mesh.size(5),
        lambda: mesh.get_group(7), lambda: d.DeviceMesh("cpu", [0, 0]), lambda: d.DeviceMesh("cpu", [7]),
        lambda: init("cpu", (2, 2), mesh_dim_names=("a", "b"), backend_override={0: "gloo", "a": "gloo"}),
        lambda: init("cpu", (2, 2), backend_override={"a": "gloo"}),
        lambda: d.DeviceMesh("cpu", [[0, 1], [2, 3]], backend_override=(("gloo", None),)),
    )  # fmt: skip


def overridden(torch, device):
    mesh = torch.distributed.init_device_mesh(
        "cpu", (4, 1), mesh_dim_names=("a", "b"), backend_override={"a": "gloo", 1: ("gloo", None)}
    )
    return told(torch, mesh)


def pickled(torch, device):
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    again = pickle.loads(pickle.dumps(mesh["tp"]))
    return [told(torch, again), again == mesh["tp"], again.get_group() is mesh.get_group("tp")]


def current(torch, device):
    d = torch.distributed
    mesh = d.init_device_mesh("cpu", (4,))
    now = d.device_mesh._mesh_resources.get_current_mesh
    with mesh as entered, d.init_device_mesh("cpu", (2, 2)) as inner:
        found = [entered is mesh, now() is inner]
    return [found, *said(torch, now)]


def parallel(torch, device):
    """DistributedDataParallel along one dimension."""
    d = torch.distributed
    mesh = d.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    make = torch.nn.parallel.DistributedDataParallel

    def net():
        made = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            made.weight.fill_(1.0)
        return made

    model = make(net(), device_mesh=mesh["dp"])
    model(torch.full((1, 2), float(10 ** d.get_rank()))).sum().backward()
    grouped = d.get_process_group_ranks(model.process_group)
    return [
        model.module.weight.grad.tolist(), grouped, model.device_mesh == mesh["dp"],
        *said(torch, lambda: make(net(), device_mesh=mesh),
              lambda: make(net(), device_mesh=mesh["dp"], process_group=d.group.WORLD)),
    ]  # fmt: skip


CASES = {name: case for name, case in globals().items() if getattr(case, "__module__", None) == __name__}
for helper in ("told", "summed", "said"):
    CASES.pop(helper)
