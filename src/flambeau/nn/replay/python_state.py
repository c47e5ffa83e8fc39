"""The Python state that a function can read, and guards that find out whether it has changed.

# Note [Guarded state]
Problem: A replay does not run the Python code, which may read any object. The state that it reads must be as it was.
Rule: A warm-up call notes which code objects run. Guarded are the function's closure and defaults, the globals that the
program's code among these names, and what can be reached from there: items of lists, tuples, dicts and sets, modules'
parameters, buffers and submodules, and those attributes of objects whose names occur in code that ran.
Why: A walk over all objects would guard what the function never reads, such as the step count of a trainer.
Consequences: State of other kinds is not guarded: files, clocks, environment variables, contents of NumPy arrays,
attributes whose names the program computes. Guards of tensors compare address, layout and `requires_grad`, not values:
a graph reads the values at each replay.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from operator import attrgetter, is_, itemgetter
from typing import Any

from flambeau.core.callsite import is_program, is_standard_file
from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.host.gc_pause import without_collections
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.state import Stateful
from flambeau.tensor.autograd.autograd_meta import leaf_of
from flambeau.tensor.storage import GraphStorage
from flambeau.tensor.tensor import Tensor

_MOST_VALUES = 20_000  # guarded values of one function
_SCALARS = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    dtype,
    device,
    range,
    type(...),
    types.CodeType,
)
_OWN = ("flambeau", "torch")
_WALKED = ("optim", "amp", "nn", "distributed")  # packages of ours whose objects are walked
_LIBRARIES = (*_OWN, "numpy", "scipy", "ml_dtypes", "cuda")  # ours, and those that our operators call
_MODULE_ATTRIBUTES = frozenset(vars(Module()))
_MISSING = object()
_layouts = attrgetter("meta")
_histories = attrgetter("history")
_addresses = attrgetter("ptr")


class TooMuchState(Exception):
    """The error of a function that can read more values than are guarded."""


class CodeThatRan:
    """The code objects that ran in a warm-up.

    Attributes:
        spaces: Code object -> the globals that it ran with.
        names: The names of attributes and globals, and the strings, that occur in the program's code.
        own_names: Those that occur in other code.
        latest: The code objects of the program that ran for the first time in the latest block.
    """

    def __init__(self) -> None:
        self.spaces: dict[types.CodeType, dict[str, Any]] = {}
        self.names: set[str] = set()
        self.own_names: set[str] = set()
        self.latest: list[types.CodeType] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note the code that this thread runs in a block, without callbacks of the garbage collector."""
        outer, spaces, before = sys.getprofile(), self.spaces, set(self.spaces)

        def note(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "call":
                spaces[frame.f_code] = frame.f_globals
            if outer is not None:
                outer(frame, event, argument)

        with without_collections():
            sys.setprofile(note)
            try:
                yield
            finally:
                sys.setprofile(outer)
                self._note_names(before)

    def _note_names(self, before: set[types.CodeType]) -> None:
        self.latest = []
        for code, space in self.spaces.items():
            is_programs = _is_of_the_program(code, space)
            if is_programs and code not in before:
                self.latest.append(code)
            names = self.names if is_programs else self.own_names
            names.update(code.co_names, [x for x in code.co_consts if isinstance(x, str)])

    def globals(self) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
        """Yield the globals of each module of the program, and the names of them that occur in code that ran."""
        by_space: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for code, space in self.spaces.items():
            if _is_of_the_program(code, space):
                by_space.setdefault(id(space), (space, set()))[1].update(code.co_names)
        for space, names in by_space.values():
            yield space, frozenset([name for name in names if name in space])


class _AllNames(set[str]):
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __or__(self, other: object) -> _AllNames:  # type: ignore[override]
        return self


class Everything(CodeThatRan):
    """The code of a function that did not run yet, which may use every attribute.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.names = self.own_names = _AllNames()
        inner: Any = inspect.unwrap(function)
        inner = getattr(inner, "__func__", inner)
        if isinstance(inner, types.FunctionType):
            codes = [inner.__code__]
            for code in codes:
                self.spaces[code] = inner.__globals__
                codes += [x for x in code.co_consts if isinstance(x, types.CodeType)]


def _is_of_the_program(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Return True for code of the program. Generated code counts as that of the module whose globals it has.

    Our frames that stand for one of the program's lines have globals without a name.
    """
    name = str(space.get("__name__", "namedtuple_"))
    return (
        is_program(code) and not name.startswith("namedtuple_") and name.partition(".")[0] not in _LIBRARIES
    )


class _Container:
    """The guarded values of one object.

    Attributes:
        path: How the program reaches it.
        fetch: Returns the values now.
        values: The values that are expected.
        names: What follows `path` for each value.
        put: Stores a value at a position.
        sized: An object that has as many items; None if there is none.
    """

    __slots__ = ("fetch", "names", "path", "put", "sized", "values")

    def __init__(
        self,
        path: str,
        fetch: Callable[[], Collection[Any]],
        names: Sequence[str],
        put: Callable[[int, Any], None] | None = None,
        sized: Sized | None = None,
    ) -> None:
        self.path, self.fetch, self.names, self.put, self.sized = path, fetch, names, put, sized
        self.values = list(fetch())


class PythonState:
    """The values that a function could read at some time, with which later values are compared.

    Args:
        roots: Path -> object, from which the walk begins.
        ran: The code that ran in the warm-up.
        with_gradients: True if gradients and hooks of leaves are guarded.

    Raises:
        TooMuchState: If there are too many values.
    """

    def __init__(self, roots: dict[str, Any], ran: CodeThatRan, with_gradients: bool = True) -> None:
        self.containers: list[_Container] = []
        self.tensors: dict[int, Tensor] = {}  # id -> tensor
        self.paths: dict[int, str] = {}  # id of a tensor -> how the program reaches it
        self._names, self._own_names = ran.names, ran.own_names | ran.names
        self._seen: dict[int, Any] = {}
        self._count = 0
        self._queue: deque[tuple[str, Any]] = deque(roots.items())
        for space, names in ran.globals():
            self._guard_dict("", space, sorted(names))
        while self._queue:
            self._walk(*self._queue.popleft())
        leaves = [t for t in self.tensors.values() if with_gradients and leaf_of(t) is not None]
        self._add_leaves(leaves)
        self._empty = [c.sized for c in self.containers if not c.values and c.sized is not None]
        self._filled = [c for c in self.containers if c.values or c.sized is None]
        self._every = list(self.tensors.values())
        self._metas = list(map(_layouts, self._every))
        self._history = list(map(_histories, self._every))
        self._positions = {id(t): k for k, t in enumerate(self._every)}
        self._used = [t for t in self._every if not is_expired(t)]
        self._ptrs = list(map(_addresses, self._used))
        self._used_positions = {id(t): k for k, t in enumerate(self._used)}

    def keep_addresses(self, accessed: Callable[[Tensor], bool]) -> None:
        """Forget the addresses of those tensors that the function does not access."""
        kept = [(t, ptr) for t, ptr in zip(self._used, self._ptrs, strict=True) if accessed(t)]
        self._used, self._ptrs = [t for t, _ in kept], [ptr for _, ptr in kept]
        self._used_positions = {id(t): k for k, t in enumerate(self._used)}

    # -- the walk -------------------------------------------------------------------------------------
    def _walk(self, path: str, value: Any) -> None:
        kind = type(value)
        if kind in _SCALARS or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, Tensor):
            self.tensors[id(value)] = value
            self.paths[id(value)] = path
        elif isinstance(value, dict):
            self._guard_dict(path, value)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            self._guard_items(path, value)
        elif isinstance(value, types.FunctionType):
            self._guard_function(path, value)
        elif isinstance(value, types.MethodType):
            self._queue += [(path, value.__func__), (f"{path}.__self__", value.__self__)]
        elif isinstance(value, functools.partial):
            self._queue += [
                (f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)
            ]  # fmt: skip
        elif isinstance(value, types.CellType):
            self._guard_cells(path, (value,))
        elif isinstance(value, types.ModuleType):
            if _is_program_module(value.__name__):
                self._guard_dict(
                    f"{path}.", vars(value), [n for n in sorted(vars(value)) if n in self._names]
                )
        elif isinstance(value, type):
            self._guard_class(path, value)
        elif _is_walked(kind):
            self._guard_object(path, value)

    def _guard(
        self,
        path: str,
        fetch: Callable[[], Collection[Any]],
        names: Sequence[str],
        put: Callable[[int, Any], None] | None = None,
        sized: Sized | None = None,
    ) -> None:
        container = _Container(path, fetch, names, put, sized)
        self._count += len(container.values)
        if self._count > _MOST_VALUES:
            raise TooMuchState(f"it can read more than {_MOST_VALUES:,} values, among them {path}")
        self.containers.append(container)
        self._queue += [
            (path + name, value) for name, value in zip(names, container.values, strict=True)
        ]  # fmt: skip

    def _guard_dict(self, path: str, space: Any, only: Sequence[str] | None = None) -> None:
        if only is not None:
            names = list(only)
            self._guard(
                path,
                _reader_of(space, names),
                names,
                lambda at, value: space.__setitem__(names[at], value),
            )
            return
        keys = list(space)
        self._guard(f"keys of {path}", space.keys, [""] * len(keys), sized=space)
        self._guard(
            path,
            space.values,
            [f"[{key!r}]" if isinstance(key, _SCALARS) else "[...]" for key in keys],
            lambda at, value: space.__setitem__(keys[at], value),
            space,
        )

    def _guard_items(self, path: str, items: Any) -> None:
        put = items.__setitem__ if isinstance(items, list) else None
        self._guard(path, lambda: list(items), [f"[{k}]" for k in range(len(items))], put, items)

    def _guard_cells(self, path: str, cells: Sequence[Any], names: Sequence[str] = ("",)) -> None:
        def fetch() -> list[Any]:
            try:
                return [cell.cell_contents for cell in cells]
            except ValueError:  # an empty cell
                return [_contents(cell) for cell in cells]

        self._guard(path, fetch, names, lambda at, value: setattr(cells[at], "cell_contents", value))

    def _guard_function(self, path: str, function: types.FunctionType) -> None:
        if function.__closure__:
            names = function.__code__.co_freevars
            self._guard_cells("", function.__closure__, names)
        get = attrgetter("__code__", "__defaults__", "__kwdefaults__")
        self._guard(path, lambda: get(function), [".__code__", ".__defaults__", ".__kwdefaults__"])

    def _guard_class(self, path: str, cls: type) -> None:
        for base in cls.__mro__:
            if _is_program_module(base.__module__):
                names = [n for n in vars(base) if n in self._names]
                self._guard(f"{path}.", _reader_of(vars(base), names), names)

    def _guard_object(self, path: str, value: Any) -> None:
        self._queue.append((type(value).__name__, type(value)))
        space = getattr(value, "__dict__", None)
        if space is not None:
            names = self._own_names if _derives_from_ours(type(value)) else self._names
            inner = _MODULE_ATTRIBUTES if isinstance(value, Module) else frozenset()
            self._guard_dict(f"{path}.", space, [n for n in space if n in names or n in inner])
        slots = [n for c in type(value).__mro__ for n in _slots_of(c) if n in self._names]
        if slots:
            self._guard(f"{path}.", lambda: [getattr(value, n, _MISSING) for n in slots], slots)

    def _add_leaves(self, leaves: Sequence[Tensor]) -> None:
        """Guard the gradients and hooks of leaves."""
        if not leaves:
            return
        # A reference to a leaf's node would keep the node on its stream: see Note [Streams of leaves].
        grads, hooks = attrgetter("history.node.grad"), attrgetter("history.node.node_hooks")
        paths = [self.paths[id(t)] for t in leaves]
        self._guard(
            "",
            lambda: _read_all(grads, leaves),
            [f"{path}.grad" for path in paths],
            lambda at, grad: setattr(leaves[at].history.node, "grad", grad),  # type: ignore[union-attr]
        )
        self._guard("", lambda: _read_all(hooks, leaves), [f"hooks of {path}" for path in paths])
        for path, found in zip(paths, map(hooks, leaves), strict=True):
            if found is not None:
                for of in (found.tensor_hooks, found.pre, found.post, found.post_accumulate):
                    self._guard_dict(f"hooks of {path}", of)
        while self._queue:
            self._walk(*self._queue.popleft())

    def names(self) -> list[str]:
        """Return how the program reaches each guarded value."""
        return [c.path + name for c in self.containers for name in c.names if name]

    # -- comparisons ----------------------------------------------------------------------------------
    def mismatch(self) -> str:
        """Return "" if all values are as expected, else what differs."""
        if any(map(len, self._empty)):
            return next(filter(None, map(self._compare, self.containers)))
        for container in self._filled:
            expected = container.values
            now = container.fetch()
            if (len(now) != len(expected) or not all(map(is_, now, expected))) and (
                why := self._compare(container)
            ):
                return why
        if not all(map(is_, map(_layouts, self._every), self._metas)):
            return self._name_tensor(_layouts, self._every, self._metas, "layout")
        if not all(map(is_, map(_histories, self._every), self._history)):
            return self._name_tensor(_histories, self._every, self._history, "place in the autograd graph")
        if list(map(_addresses, self._used)) != self._ptrs:
            return self._name_tensor(_addresses, self._used, self._ptrs, "address")
        return ""

    def _name_tensor(self, get: Any, tensors: Sequence[Tensor], expected: Sequence[Any], what: str) -> str:
        for t, value in zip(tensors, expected, strict=True):
            if get(t) is not value and get(t) != value:
                return f"{self.paths.get(id(t), 'a tensor')} has another {what}"
        return f"a tensor has another {what}"

    def _compare(self, container: _Container) -> str:
        """Compare values that are not identical. Equal ones are expected from then on."""
        now = list(container.fetch())
        if len(now) != len(container.values):
            name = container.path or "a tensor that required a gradient"
            return f"{name} has {len(now)} items instead of {len(container.values)}"
        for at, (value, expected) in enumerate(zip(now, container.values, strict=True)):
            if value is not expected and not self._replaces(value, expected):
                return (
                    f"{container.path}{container.names[at]} changed from {_show(expected)} to {_show(value)}"
                )
        container.values = now
        return ""

    def _replaces(self, value: Any, expected: Any) -> bool:
        """Return True if the function behaves equally with both values."""
        if type(value) is not type(expected):
            return False
        if isinstance(value, Tensor):
            return self._replaces_tensor(value, expected)
        if isinstance(value, types.MethodType):
            return value.__self__ is expected.__self__ and value.__func__ is expected.__func__
        if isinstance(value, tuple):
            return len(value) == len(expected) and all(
                a is b or self._replaces(a, b) for a, b in zip(value, expected, strict=True)
            )
        return isinstance(value, _SCALARS) and bool(value == expected)

    def _replaces_tensor(self, value: Tensor, expected: Tensor) -> bool:
        """Return True for tensors that need no gradient, of one layout, at one address if that is used."""
        if value.history is not None or expected.history is not None or value.meta is not expected.meta:
            return False
        used = self._used_positions.get(id(expected))
        if used is not None and value.ptr != self._ptrs[used]:
            return False
        if id(expected) not in self._positions:  # another value was the same tensor, and was replaced before
            return id(value) in self._positions
        self._replace(value, expected)
        return True

    def _replace(self, value: Tensor, expected: Tensor) -> None:
        """Compare one tensor in place of another one from now on."""
        position = self._positions.pop(id(expected))
        self._every[position], self._positions[id(value)] = value, position
        used = self._used_positions.pop(id(expected), None)
        if used is not None:
            self._used[used], self._used_positions[id(value)] = value, used
        del self.tensors[id(expected)]
        self.tensors[id(value)] = value
        self.paths[id(value)] = self.paths.pop(id(expected), "a tensor")

    def assign(self, container: _Container, at: int, value: Tensor) -> None:
        """Store a tensor that a replay assigns, and expect it there if a tensor was there before."""
        container.put(at, value)  # type: ignore[misc]
        expected = container.values[at]
        if isinstance(expected, Tensor) and id(expected) in self._positions:
            container.values[at] = value
            self._replace(value, expected)

    def changes(self) -> list[tuple[_Container, int, Any]]:
        """Return the values that are other objects now: container, position, value."""
        found = []
        for container in self.containers:
            now = list(container.fetch())
            if len(now) != len(container.values):
                found.append((container, -1, None))
                continue
            found += [
                (container, at, value)
                for at, (value, expected) in enumerate(zip(now, container.values, strict=True))
                if value is not expected
                and not (isinstance(value, _SCALARS) and self._replaces(value, expected))
            ]
        return found


def is_expired(t: Tensor) -> bool:
    """Return True for a result of a graph that has run again since."""
    return isinstance(t.memory, GraphStorage) and t.memory.call is not None


def _reader_of(space: Mapping[str, Any], names: Sequence[str]) -> Callable[[], Collection[Any]]:
    """Return a function that returns the values of `names` now."""
    get, pick = space.get, itemgetter(*names) if len(names) > 1 else None

    def read() -> Collection[Any]:
        if pick is not None:
            try:
                return pick(space)  # type: ignore[no-any-return]  # of several names: a tuple
            except KeyError:
                pass
        return [get(name, _MISSING) for name in names]

    return read


def _read_all(get: Callable[[Any], Any], leaves: Sequence[Tensor]) -> list[Any]:
    """Return an attribute of the node of each leaf; nothing if one is no leaf any more."""
    try:
        return list(map(get, leaves))
    except AttributeError:
        return []


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _slots_of(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_program_module(name: str) -> bool:
    """Return True if a Python module belongs to neither Flambeau, its libraries, nor the standard library."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name.partition(".")[0] in _LIBRARIES:
        return name == "__main__"
    return not is_standard_file(file) and not file.startswith(_FOLDER)


_FOLDER = __file__.rpartition("nn/replay")[0]


def _is_walked(kind: type) -> bool:
    """Return True if attributes of an object of this class are guarded."""
    if issubclass(kind, Module):
        return True
    module = kind.__module__
    root, _, rest = module.partition(".")
    if root in _OWN:
        return rest.partition(".")[0] in _WALKED
    return _is_program_module(module)


def _derives_from_ours(kind: type) -> bool:
    """Return True if this package may read attributes of objects of this class. Attributes of Modules do not count."""
    return any(c.__module__.partition(".")[0] in _OWN and c not in (Module, Stateful) for c in kind.__mro__)


def _show(value: Any) -> str:
    """Return a short text of a value."""
    if isinstance(value, Tensor):
        return f"a tensor of {list(value.meta.shape)}"
    if value is _MISSING:
        return "nothing"
    text = repr(value) if isinstance(value, _SCALARS) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
