"""torch.distributed.device_mesh: an n-dimensional array of ranks, with a process group along each dimension.

A mesh is some axes (`mesh_layout.py`) over a flat list of ranks. Slices and flattened meshes keep the list and groups
of the mesh that they were created from, their root, and have their own axes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from flambeau.core.dtype import int32
from flambeau.core.errors import type_name
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed import mesh_layout
from flambeau.distributed.debug import DebugLevel, level_of
from flambeau.distributed.mesh_layout import Axis
from flambeau.distributed.process_groups import (
    get_process_group_ranks,
    get_rank,
    get_world_size,
    is_initialized,
    named_group,
)
from flambeau.distributed.setup import init_process_group, new_group
from flambeau.distributed.world import ProcessGroup, world
from flambeau.runtime import current, system
from flambeau.tensor.exchange.data import tensor as new_tensor
from flambeau.tensor.tensor import Tensor

__all__ = ["DeviceMesh", "init_device_mesh"]

explain_absent_names(globals(), "torch.distributed.device_mesh")

logger = logging.getLogger("torch.distributed.device_mesh")
Override = tuple[Any, Any]  # backend and options of a dimension's groups; only the options' timeout counts
_NONE: Override = (None, None)


class DeviceMesh:
    """An n-dimensional array of ranks: `mesh[i, j]` is the global rank at row i and column j. All ranks create equal
    meshes.

    Each dimension has groups of the ranks that differ only in that dimension's index. The constructor initializes the
    group of all ranks if there is none. If CUDA has not been used yet it selects a CUDA device: LOCAL_RANK, else the
    rank modulo the number of devices.

    Args:
        device_type: "cuda" or "cpu", the device of the groups' tensors.
        mesh: Ranks, as a tensor or nested lists.
        mesh_dim_names: A name for each dimension, by which the mesh can be sliced.
        backend_override: For each dimension (backend, options) of its groups; None for the backends of the group of all
            ranks.

    Raises:
        RuntimeError: If the mesh has more ranks than the group of all ranks.
        ValueError: If a rank does not exist or occurs twice.
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[Override] | None = None,
        _init_backend: bool = True,
        _rank: int | None = None,
    ) -> None:
        if mesh is None:
            raise TypeError("The mesh argument is required except for PRIVATE USAGE ONLY!")
        ranks = _as_tensor(mesh)
        self._stand(device_type, mesh_layout.row_major(ranks.shape), ranks.flatten().tolist(), mesh_dim_names)
        overrides = self._overrides(backend_override)
        if _init_backend:
            self._set_up_world()
            self._dim_group_names = self._make_groups(self._axes, self._mesh_dim_names, overrides)
        self._find_place(_rank)

    def _stand(
        self, kind: str, axes: Sequence[Axis], ranks: Sequence[int], names: Sequence[str] | None
    ) -> None:
        """Set the position of the mesh. It has no groups yet."""
        self._device_type = kind
        self._axes = tuple(axes)
        self._ranks = tuple(ranks)
        self._mesh_dim_names = tuple(names) if names else None
        self._root: DeviceMesh | None = None
        self._flatten_mapping: dict[str, DeviceMesh] = {}
        self._coordinate: tuple[int, ...] | None = None

    def _part(self, axes: Sequence[Axis], names: Sequence[str], groups: list[str]) -> DeviceMesh:
        """Return a mesh over the root's ranks with other axes."""
        root = self._get_root_mesh()
        made = DeviceMesh.__new__(DeviceMesh)
        made._stand(root._device_type, axes, root._ranks, names)
        made._root = root
        made._dim_group_names = groups
        made._find_place(None)
        return made

    def _find_place(self, rank: int | None) -> None:
        mine = get_rank() if rank is None else rank
        places = [place for place, other in enumerate(self._mine(mine)) if other == mine]
        if len(places) > 1:
            raise AssertionError(f"rank_coords.size(0) must be 0 or 1, got {len(places)}")
        self._coordinate = tuple(_index(places[0], self.shape)) if places else None

    def _overrides(self, given: Sequence[Override] | None) -> Sequence[Override]:
        if given is None:
            return [_NONE] * self.ndim
        if len(given) != self.ndim:
            raise ValueError(
                "backend_override should have the same length as the number of mesh dimensions, but got "
                f"{len(given)} and {self.ndim}."
            )
        return given

    # -- groups -------------------------------------------------------------------------------------------------

    def _set_up_world(self) -> None:
        """Create the group of all ranks and select a device, unless the program has."""
        if not is_initialized():
            init_process_group()
        size, count = get_world_size(), prod(self.shape)
        if count > size:
            raise RuntimeError(
                f"Mesh should not be bigger than default world size {size}, but found {count} ranks!"
            )
        if self._device_type == "cuda" and system.device_count() and not system.is_initialized():
            _select_device(size)

    def _make_groups(
        self, axes: Sequence[Axis], names: Sequence[str] | None, overrides: Sequence[Override]
    ) -> list[str]:
        """Return the name of this rank's group along each axis; none, if it is not in the mesh. All ranks call."""
        made = [
            self._make_group(one, f"mesh_{names[place] if names else f'dim_{place}'}", override)
            for place, (one, override) in enumerate(zip(axes, overrides, strict=True))
        ]
        return [name for name in made if name is not None]

    def _make_group(self, along: Axis, description: str, override: Override) -> str | None:
        if mesh_layout.length(along) == get_world_size() and override == _NONE:
            return world().require_default().group_name
        backend, options = override
        timeout = getattr(options, "_timeout", None)
        found = None
        for ranks in self._copies(along):
            group = new_group(ranks, timeout, backend, options, group_desc=description)
            if get_rank() in ranks:
                found = group.group_name
        return found

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Return this rank's group along a dimension, by index or name. A mesh of one dimension needs none.

        Raises:
            RuntimeError: If the mesh has several dimensions and none is named.
            KeyError: If there is none of this name.
        """
        if not hasattr(self, "_dim_group_names"):
            raise RuntimeError("DeviceMesh process groups not initialized!")
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(
                    f"Found the DeviceMesh have {self.ndim} dimensions",
                    "Optional kwarg `mesh_dim` needs to be specified when device_mesh.ndim > 1.",
                    "If you want to get the list of all the ProcessGroups in the DeviceMesh,"
                    "please use `get_all_groups()` instead.",
                )
            mesh_dim = 0
        flattened = self._get_root_mesh()._flatten_mapping.get(mesh_dim)  # type: ignore[arg-type]
        if flattened is not None:
            return named_group(flattened._dim_group_names[0])
        if isinstance(mesh_dim, str):
            mesh_dim = self._get_mesh_dim_by_name(mesh_dim)
        if not isinstance(mesh_dim, int):
            raise AssertionError(f"mesh_dim must be an int, got {type(mesh_dim)}")
        return named_group(self._dim_group_names[mesh_dim])

    def get_all_groups(self) -> list[ProcessGroup]:
        """Return this rank's group along each dimension."""
        return [self.get_group(place) for place in range(self.ndim)]

    # -- what can be asked --------------------------------------------------------------------------------------

    @property
    def device_type(self) -> str:
        return self._device_type

    @property
    def mesh(self) -> Tensor:
        """Return the ranks, int32 on the CPU.

        Raises:
            RuntimeError: If the mesh is a slice and this rank is not in it.
        """
        found: Tensor = new_tensor(self._mine(None), dtype=int32, device="cpu").reshape(self.shape)
        return found

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        return self._mesh_dim_names

    @property
    def ndim(self) -> int:
        return len(self._axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([mesh_layout.length(one) for one in self._axes])

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of ranks of the mesh, or along one dimension."""
        return prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def get_rank(self) -> int:
        """Return this rank's global number."""
        return get_rank()

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this rank's number in its group along a dimension.

        Raises:
            RuntimeError: If the mesh has several dimensions and none is named.
        """
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(
                f"Found the DeviceMesh have {self.ndim} dimensions",
                "Optional kwarg `mesh_dim` needs to be specified when device_mesh.ndim > 1.",
            )
        return get_rank(self.get_group(0 if mesh_dim is None else mesh_dim))

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return this rank's index along each dimension, or None if it is not in the mesh."""
        return self._coordinate

    def _is_current_rank_part_of_mesh(self) -> bool:
        return self._coordinate is not None

    def __repr__(self) -> str:
        names = self._mesh_dim_names
        shape = (
            f"({', '.join(f'{name}={size}' for name, size in zip(names, self.shape, strict=False))})"
            if names
            else f"{self.shape}"
        )
        strides = [tuple([stride for _, stride in one]) for one in self._axes]
        stride = tuple([one[0] if len(one) == 1 else one for one in strides])
        detail = level_of(world().environment) is DebugLevel.DETAIL
        ranks = f", Mesh: {self.mesh.tolist()}" if detail else ""
        return f"DeviceMesh({shape}, '{self._device_type}', stride={stride}{ranks})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._ranks, self._axes, self._device_type, self._mesh_dim_names

    def __enter__(self) -> DeviceMesh:
        """Make this the current mesh, which `_mesh_resources` returns."""
        world().meshes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        world().meshes.pop()

    # -- parts --------------------------------------------------------------------------------------------------

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the submesh of the named dimensions that contains this rank. `mesh["tp"]` of a (dp, tp) mesh is this
        rank's row.

        Raises:
            RuntimeError: If the mesh has no names, or the dimensions overlap.
            KeyError: If a name does not exist, or the names are in another order.
        """
        if not self._mesh_dim_names:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else mesh_dim_names
        if names == self._mesh_dim_names:
            return self
        flattened = self._get_root_mesh()._flatten_mapping if self == self._get_root_mesh() else {}
        valid = [*self._mesh_dim_names, *flattened]
        if not all(name in valid for name in names):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Valid mesh_dim_names are {valid}.")
        if any(name not in self._mesh_dim_names for name in names):
            warnings.warn(
                "Slicing a flattened dim from root mesh will be deprecated in PT 2.11. Users need to bookkeep the "
                "flattened mesh directly. ",
                stacklevel=2,
            )
        return self._slice(names, flattened)

    def _slice(self, names: tuple[str, ...], flattened: dict[str, DeviceMesh]) -> DeviceMesh:
        own = self._mesh_dim_names or ()
        held = [(self, own.index(name)) if name in own else (flattened[name], 0) for name in names]
        axes = [mesh._axes[place] for mesh, place in held]
        together = mesh_layout.join_axes(axes)
        if not mesh_layout.in_order(together):
            raise KeyError(
                f"Invalid mesh_dim_names {names} specified. Mesh dim indices should be in ascending order."
            )
        if not mesh_layout.apart(together):
            raise RuntimeError(f"Slicing overlapping dim_names {names} is not allowed.")
        groups = [mesh._dim_group_names[place] for mesh, place in held] if self._dim_group_names else []
        return self._part(axes, names, groups)

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        """Return a mesh of one dimension with the same ranks, under a name (default: its names, joined by "_").

        All ranks call. Raises RuntimeError if it has no names, or ValueError if the name is another dimension's.
        """
        if not self._mesh_dim_names:
            raise RuntimeError("Cannot flatten a DeviceMesh without mesh_dim_names!")
        name = mesh_dim_name or "_".join(self._mesh_dim_names)
        if self.ndim == 1 and name in self._mesh_dim_names:
            return self
        override = (
            _NONE if backend_override is None else next(_overrides_by_dimension({0: backend_override}, 1, ()))
        )
        root, whole = self._get_root_mesh(), mesh_layout.join_axes(self._axes)
        if name in (root._mesh_dim_names or ()):
            raise ValueError(
                f"{name} already exists for submesh of the {root}. ",
                f"The mesh_dim_names of submesh and flattened mesh are {root._mesh_dim_names}. "
                "Please specify another valid mesh_dim_name.",
            )
        mesh = root._flatten_mapping.get(name)
        if mesh is None:
            groups = self._make_groups([whole], [name], [override])
            mesh = root._flatten_mapping[name] = self._part([whole], [name], groups)
        elif mesh._axes != (whole,):
            raise ValueError(
                f"Flatten mesh with mesh_dim_name {name} has been created before, Please specify another valid "
                "mesh_dim_name."
            )
        return mesh

    def _unflatten(
        self,
        dim: int | str,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str],
        backend_override: dict[Any, Any] | None = None,
    ) -> DeviceMesh:
        """Return a mesh in which one dimension is split into several. All ranks call this."""
        names = self._mesh_dim_names or ()
        if isinstance(dim, int) and dim >= self.ndim:
            raise ValueError(f"dim {dim} specified in `_unflatten` is out of range {self.ndim}")
        if isinstance(dim, str) and dim not in names:
            raise ValueError(f"dim {dim} specified in `_unflatten` is not in {self.mesh_dim_names}")
        if len(mesh_sizes) != len(mesh_dim_names):
            raise RuntimeError("mesh_dim_names must have same length as mesh_sizes in _unflatten!")
        at = names.index(dim) if isinstance(dim, str) else dim
        if prod(mesh_sizes) != self.size(at):
            raise ValueError(
                f"The product of mesh_sizes={mesh_sizes} is {prod(mesh_sizes)}, but the original dimension at "
                f"dim={at} has size {self.size(at)}. These must be equal for unflatten to work correctly."
            )
        axes = mesh_layout.split(self._axes[at], mesh_sizes)
        overrides = list(
            _overrides_by_dimension(dict(backend_override or {}), len(mesh_sizes), mesh_dim_names)
        )
        made = self._make_groups(axes, mesh_dim_names, overrides)
        old = self._dim_group_names
        return self._part(
            [*self._axes[:at], *axes, *self._axes[at + 1 :]],
            [*names[:at], *mesh_dim_names, *names[at + 1 :]],
            [*old[:at], *made, *old[at + 1 :]],
        )

    @staticmethod
    def from_group(
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Return a mesh of existing groups: of one group, or of one group for each dimension of `mesh`.

        Raises:
            ValueError: If there are no groups, if `mesh` or names are missing or do not match several groups, or if
                `mesh` is not the ranks of the one group.
        """
        groups = [group] if isinstance(group, ProcessGroup) else list(group)
        if isinstance(group, ProcessGroup):
            members = get_process_group_ranks(group)
            if mesh is not None and (mesh.tolist() if isinstance(mesh, Tensor) else mesh) != members:
                raise ValueError(f"Invalid mesh {mesh!s} for ProcessGroup with ranks {members}")
            mesh = members
        elif not groups:
            raise ValueError("Expects at least one ProcessGroup to be passed")
        elif mesh is None:
            raise ValueError("Must pass mesh if passing multiple ProcessGroups")
        elif mesh_dim_names is None:
            raise ValueError("Must pass mesh_dim_names if passing multiple ProcessGroups")
        ranks = _as_tensor(mesh)
        if ranks.ndim != len(groups):
            raise ValueError(
                f"Expects mesh with ndim equal to number of ProcessGroups but got mesh {ranks.tolist()} and "
                f"{len(groups)} ProcessGroups"
            )
        made = DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _init_backend=False)
        made._dim_group_names = [one.group_name for one in groups]
        return made

    # -- within -------------------------------------------------------------------------------------------------

    def _get_root_mesh(self) -> DeviceMesh:
        return self if self._root is None else self._root

    def _get_mesh_dim_by_name(self, mesh_dim_name: str) -> int:
        names = self._mesh_dim_names
        if not names:
            raise KeyError("No `mesh_dim_names` found.")
        if mesh_dim_name not in names:
            raise KeyError(
                f"Mesh dimension '{mesh_dim_name}' does not exist.",
                f"Available mesh dimensions are: mesh_dim_names={names}",
            )
        return names.index(mesh_dim_name)

    def _copies(self, along: Axis) -> list[list[int]]:
        """Return the ranks of each copy of an axis in the root's list."""
        tiles = mesh_layout.tiles(along, len(self._ranks))
        return [[self._ranks[place] for place in places] for places in tiles]

    def _mine(self, rank: int | None) -> list[int]:
        """Return, in order, the ranks of the copy of the mesh that contains `rank`, which is this rank by default."""
        copies = self._copies(mesh_layout.join_axes(self._axes))
        if len(copies) == 1:
            return copies[0]
        mine = get_rank() if rank is None else rank
        for ranks in copies:
            if mine in ranks:
                return ranks
        raise RuntimeError(
            "In order to get the mesh Tensor of a DeviceMesh it needs to either have all its original dimensions "
            "(e.g., no slicing) or it needs to contain the local rank"
        )


class _MeshEnv:
    """The namespace `_mesh_resources`: the stack of meshes that `with` statements have entered."""

    def get_current_mesh(self) -> DeviceMesh:
        """Return the innermost. Raises RuntimeError if there is none."""
        if not world().meshes:
            raise RuntimeError("No device mesh is currently active!")
        found: DeviceMesh = world().meshes[-1]
        return found


_mesh_resources = _MeshEnv()


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    backend_override: dict[Any, Any] | None = None,
) -> DeviceMesh:
    """Return a mesh of the first ranks in row-major order: (2, 4) has ranks 0 to 3 in its first row. All ranks call it.

    Args:
        backend_override: Index or name of a dimension -> backend, or (backend, options), of the groups along it.

    Raises:
        RuntimeError: If names are repeated or not as many as sizes, the device has an index, there are too few ranks,
            or an override names no dimension.
    """
    if mesh_dim_names is not None:
        if len(set(mesh_dim_names)) != len(mesh_dim_names):
            raise RuntimeError(
                "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names "
                f"{mesh_dim_names}"
            )
        if len(mesh_shape) != len(mesh_dim_names):
            raise RuntimeError(
                f"mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): "
                f"{len(mesh_dim_names)} and len(mesh_shape):{len(mesh_shape)}."
            )
    overrides = None
    if backend_override is not None:
        overrides = tuple(
            _overrides_by_dimension(dict(backend_override), len(mesh_shape), mesh_dim_names or ())
        )
    if not isinstance(device_type, str):
        raise TypeError(
            f"init_device_mesh(): device_type must be a str such as 'cuda', not {type_name(device_type)}"
        )
    if device_type and not device_type.isalpha():
        raise RuntimeError(
            f"Device type with index is not supported but got {device_type}. ",
            "If you maintained a 'torch.device' object, it's recommended to pass in 'device.type'.",
        )
    ranks = new_tensor(list(range(prod(mesh_shape))), dtype=int32, device="cpu").reshape(mesh_shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=overrides)


def _overrides_by_dimension(given: dict[Any, Any], ndim: int, names: Sequence[str]) -> Iterator[Override]:
    """Yield (backend, options) of each dimension. Raises RuntimeError if a dimension is named twice or does not
    exist.
    """
    for place in range(ndim):
        name = names[place] if place < len(names) else None
        if name is not None and name in given:
            if place in given:
                raise RuntimeError(f"Found redundant dim index {place} and name {name} in backend_override")
            found = given.pop(name)
        else:
            found = given.pop(place, _NONE)
        yield (
            (found, None) if isinstance(found, str) else found if isinstance(found, tuple) else (None, found)
        )
    if given:
        raise RuntimeError(
            f"Found invalid keys in backend_override: got {list(given)}, expected integers in range [0, {ndim}) or "
            f"one of {tuple(names)}"
        )


def _as_tensor(mesh: Any) -> Tensor:
    """Return the ranks as an int32 tensor on the CPU."""
    found: Tensor = (
        mesh.detach().to("cpu", int32)
        if isinstance(mesh, Tensor)
        else new_tensor(mesh, dtype=int32, device="cpu")
    )
    return found


def _index(place: int, shape: Sequence[int]) -> list[int]:
    """Return the coordinates of a position of a flat list in rows and columns."""
    found: list[int] = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        found.insert(0, rest)
    return found


def _select_device(size: int) -> None:
    """Select a CUDA device for this process by LOCAL_RANK, or by a guess with a warning."""
    local, count = world().environment.get("LOCAL_RANK"), system.device_count()
    if local is None:
        warnings.warn(
            "It seems like you did not set/select the default device for the current process before the DeviceMesh "
            "initialization or use a launcher (i.e. torchrun) which populates `LOCAL_RANK` environment variable. It "
            "is recommended to set the current device for the process BEFORE the DeviceMesh initialization so that "
            "the underlying communicator (i.e. NCCL) can be initialized properly. Given that the current process has "
            "no default device selected, DeviceMesh will use a heuristic to set the device_id via `global_rank % "
            "num_devices_per_host`, assuming homogeneous hardware cluster. ",
            stacklevel=4,
        )
        if size > count and size % count:
            raise RuntimeError(
                f"DeviceMesh only support homogeneous hardware, but found {size} ranks and {count} cuda devices!"
            )
    index = get_rank() % count if local is None else int(local)
    current.context_at(index)
    current.local.device = index
