"""`PickleMachine`: reads a checkpoint's pickle and calls nothing that is not on its list.

# Note [Why weights_only is safe]
The machine is that of `core/ipc/pickle_reader.py`, which calls nothing. This one can call the functions and types of
a list, by identity, each through a function of this file that checks the arguments first. It can fill lists, dicts
and sets that the pickle itself made, and give attributes to ordered dicts (of strings) and to objects of types that
the program's user has declared safe. It refuses everything else by name.
"""

from __future__ import annotations

import _codecs
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from flambeau.core.brief import brief, brief_text
from flambeau.core.device import device
from flambeau.core.ipc.pickle_reader import GETS, PUTS, PickleReader, Refused, opcodes
from flambeau.core.size import Size
from flambeau.nn.parameter import Parameter, _rebuild_parameter_with_state
from flambeau.serialization import pickle_names
from flambeau.serialization.pickle_names import Name
from flambeau.tensor.exchange import pickling
from flambeau.tensor.storages import Face
from flambeau.tensor.tensor import Tensor

_PLAIN: dict[Name, Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("builtins", "set"): set,
    ("builtins", "complex"): complex,
    ("builtins", "bytes"): bytes,  # of nothing; others are encoded strings
    ("builtins", "bytearray"): bytearray,
    ("_codecs", "encode"): _codecs.encode,
}
_ALLOWED = _PLAIN | pickle_names.REBUILDERS | pickle_names.TYPES | pickle_names.VALUES
_BY_NAME = {f"{module}.{name}": thing for (module, name), thing in _ALLOWED.items()}
_Arguments = tuple[Any, ...]
_COPIED = 3  # bytes of a storage that is copied, for a step of work


class PickleMachine(PickleReader):
    """A reader of one pickle of a checkpoint, of protocol 2 or newer, from a file.

    Args:
        persistent_load: Returns the storage that a persistent id stands for.
        declared: Things that the user declared safe, by full name.
        nbytes: Size of the file.
        encoding: Of the byte strings of Python 2.
    """

    def __init__(
        self,
        persistent_load: Callable[[Any], Any],
        declared: dict[str, Any],
        nbytes: int,
        encoding: str = "utf-8",
    ) -> None:
        super().__init__(nbytes, encoding)
        self._persistent_load = persistent_load
        self._declared = declared

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent_load(pid)

    def _is_declared(self, what: Any) -> bool:
        return any(what is one for one in self._declared.values())

    def _is_list(self, target: Any) -> bool:
        return type(target) is list or self._is_declared(type(target))

    def _is_dict(self, target: Any) -> bool:
        return type(target) in (dict, OrderedDict, Counter) or self._is_declared(type(target))

    def _global(self, module: Any, name: Any) -> None:
        full = _full(module, name)
        found = _BY_NAME.get(full)
        if found is None:
            found = self._declared.get(full)
        if found is None:
            shown = brief_text(full.removeprefix("builtins."))
            raise Refused(
                f"Unsupported global: GLOBAL {shown} was not an allowed global by default. Please use "
                f"`torch.serialization.add_safe_globals([{shown}])` or the "
                f"`torch.serialization.safe_globals([{shown}])` context manager to allowlist this global if "
                "you trust this class/function.",
                full,
            )
        self._push(found)

    # -- calls --------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        arguments = self._pop()
        define = self._pop()
        if not isinstance(arguments, tuple):
            raise Refused(f"cannot call {brief(define)} with {brief(arguments)}, which is not a tuple")
        call = _CALLS.get(id(define))
        if call is not None:
            self._push(call(self, arguments))
        elif self._is_declared(define):
            self._push(define(*arguments))
        else:
            raise Refused(f"Trying to call reduce for unrecognized function {brief(define)}")

    def _rebuild(self, define: Any, arguments: _Arguments) -> Any:
        for part in arguments:  # sizes and strides are looked through, a state is copied
            if isinstance(part, tuple | list | dict):
                self.spend(len(part))
        if arguments and isinstance(arguments[-1], dict) and arguments[-1] and isinstance(arguments[0], Face):
            self.spend(arguments[0].nbytes() // _COPIED)  # metadata: the storage is copied
        return define(*arguments)

    def _rebuild_sparse(self, arguments: _Arguments) -> Any:
        """Return a sparse tensor with a copy of the indices: shared memory could change after the check."""
        layout, parts = arguments
        tensors = [part for part in _only(tuple, (parts,)) if isinstance(part, Tensor)]
        self.spend(sum([part.numel() for part in tensors]))  # strides of zero can make many of few
        indices = [part.clone() for part in tensors[:-1]]
        return self._rebuild(pickling.rebuild_sparse, (layout, (*indices, *parts[len(indices) :])))

    def _rebuild_subclass(self, arguments: _Arguments) -> Any:
        """Return a tensor of a subclass: built by a function of the list, into a type of the list, its state a dict."""
        define, kind, of, state = arguments
        known = [f for f in pickle_names.REBUILDERS.values() if f is not pickling.rebuild_subclass]
        if not any(define is one for one in known):
            raise Refused(f"Trying to call reduce for unrecognized function {brief(define)}")
        if not (any(kind is one for one in pickle_names.TYPES.values()) or self._is_declared(kind)):
            raise Refused(f"Trying to make a tensor of unrecognized type {brief(kind)}")
        if not (isinstance(kind, type) and issubclass(kind, Tensor) and isinstance(of, tuple)):
            raise Refused(f"Trying to make a tensor of type {brief(kind)} of {brief(of)}")
        self._check_state(state, kind)
        made = _CALLS[id(define)](self, of)
        return pickling.rebuild_subclass(lambda: made, kind, (), state)

    def _rebuild_with_state(self, define: Any, arguments: _Arguments) -> Any:
        self._check_state(arguments[3], Parameter)
        return self._rebuild(define, arguments)

    def _set(self, arguments: _Arguments) -> Any:
        made: set[Any] = set()
        for key in _only(list, arguments):
            self.check_key(made, key)
            made.add(key)
        return made

    def _dict(self, kind: type[Any], arguments: _Arguments) -> Any:
        """Return an ordered dict of nothing, of pairs (of Python 2) or of a dict."""
        made = kind()
        pairs = _only((list, dict), arguments) if arguments else ()
        for pair in pairs.items() if isinstance(pairs, dict) else pairs:
            key, value = pair if type(pair) in (list, tuple) else ()
            self.check_key(made, key)
            made[key] = value
        return made

    def _size(self, arguments: _Arguments) -> Size:
        sizes = _only((tuple, list), arguments)
        self.spend(len(sizes))
        if not all(type(n) is int for n in sizes):
            raise TypeError(f"torch.Size must consist of ints, not {brief(sizes)}")
        return Size(sizes)

    def _device(self, arguments: _Arguments) -> device:
        if not 1 <= len(arguments) <= 2 or not all(type(one) in (str, int) for one in arguments):
            raise TypeError(f"torch.device() takes a name and a number, not {brief(arguments)}")
        return device(*arguments)

    def _complex(self, arguments: _Arguments) -> complex:
        if len(arguments) != 2 or not all(type(one) is float for one in arguments):
            raise TypeError(f"complex() takes two floats here, not {brief(arguments)}")
        return complex(*arguments)

    def _bytes(self, arguments: _Arguments) -> bytes:
        if arguments:
            raise TypeError(f"bytes() takes nothing here, not {brief(arguments)}")
        return b""

    def _bytearray(self, arguments: _Arguments) -> bytearray:
        if not arguments:
            return bytearray()
        data = arguments[0] if type(arguments[0]) is bytes else self._encode(arguments)
        self.spend(len(data) // 8)
        return bytearray(data)

    def _encode(self, arguments: _Arguments) -> bytes:
        text, codec = arguments
        if type(text) is not str or codec not in ("latin1", "latin-1"):
            raise Refused(f"_codecs.encode stands for bytes, in latin1, not for {brief(arguments)}")
        self.spend(len(text) // 8)
        return text.encode("latin-1")

    # -- objects ------------------------------------------------------------------------------------------

    def _new(self) -> None:
        arguments = self._pop()
        kind = self._pop()
        if kind is OrderedDict or kind is Counter:
            self._push(kind())
        elif self._is_declared(kind):
            self._push(kind.__new__(kind, *arguments))
        else:
            raise Refused(f"Trying to create new object for unrecognized class {brief(kind)}")

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1]
        if type(target) is OrderedDict:
            self._check_state(state, OrderedDict)
            target.__dict__.update(state)
        elif self._is_declared(type(target)):
            self.spend(len(state) if isinstance(state, dict) else 0)
            _set_state(target, state)
        else:
            raise Refused(
                "Can only build Tensor, Parameter, OrderedDict or types allowlisted via "
                f"`add_safe_globals`, but got {brief(type(target))}"
            )

    def _check_state(self, state: Any, kind: type[Any]) -> None:
        """Refuse attributes that hide methods, except for classes that the user declared."""
        if not isinstance(state, dict) or not all(type(key) is str for key in state):
            raise Refused(f"a state must be a dict of names, not {brief(state)}")
        self.spend(len(state))
        hidden = (
            [] if self._is_declared(kind) else [key for key in state if callable(getattr(kind, key, None))]
        )
        if hidden:
            raise Refused(f"an attribute of a {kind.__name__} would hide its method {brief_text(hidden[0])}")


def _only(kinds: Any, arguments: _Arguments) -> Any:
    """Return the only argument of a call, which must be of one of these types. Raises TypeError."""
    (one,) = arguments
    if not isinstance(one, kinds):
        raise TypeError(f"a {type(one).__name__} is none of the arguments that pickles have there")
    return one


def _rebuilder(define: Any) -> Callable[[PickleMachine, _Arguments], Any]:
    return lambda m, a: m._rebuild(define, a)


_CALLS: dict[int, Callable[[PickleMachine, _Arguments], Any]] = {
    **{id(define): _rebuilder(define) for define in pickle_names.REBUILDERS.values()},
    id(pickling.rebuild_sparse): PickleMachine._rebuild_sparse,
    id(pickling.rebuild_subclass): PickleMachine._rebuild_subclass,
    id(_rebuild_parameter_with_state): lambda m, a: m._rebuild_with_state(_rebuild_parameter_with_state, a),
    id(OrderedDict): lambda m, a: m._dict(OrderedDict, a),
    id(Counter): lambda m, a: m._dict(Counter, a),
    id(set): PickleMachine._set,
    id(complex): PickleMachine._complex,
    id(bytes): PickleMachine._bytes,
    id(bytearray): PickleMachine._bytearray,
    id(_codecs.encode): PickleMachine._encode,
    id(Size): PickleMachine._size,
    id(device): PickleMachine._device,
}
"""What a pickle may call, by identity: each function looks at the arguments first."""


def _set_state(target: Any, state: Any) -> None:
    """Set the state of an object as pickle does, for types that the program declared safe."""
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        target.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(target, name, value)


def refused_names(file: Any, declared: dict[str, Any]) -> list[str]:
    """Return the names in a pickle that a `PickleMachine` refuses, without running it.

    Raises:
        UnpicklingError: If the pickle is damaged.
    """
    found: dict[str, None] = {}
    last: list[Any] = [None, None]  # the values pushed last, if they were strings
    memo: dict[int, Any] = {}
    for opcode, argument, _ in _until_end(file):
        if opcode.name == "GLOBAL":
            found[_full(*argument.split(" ", 1))] = None
        elif opcode.name == "STACK_GLOBAL":
            found[_full(*last)] = None
        elif opcode.name in PUTS:
            memo[len(memo) if argument is None else argument] = last[-1]
        else:
            last = [last[-1], memo.get(argument) if opcode.name in GETS else argument]
    return [name for name in found if name not in _BY_NAME and name not in declared]


def _until_end(file: Any) -> Iterator[tuple[Any, Any, int]]:
    try:
        yield from opcodes(file)
    except EOFError:
        raise Refused("the pickle ends early") from None


def _full(module: Any, name: Any) -> str:
    """Return the full name under which Python 3 knows a module and a name. Protocol 2 has the names of Python 2."""
    if type(module) is not str or type(name) is not str:
        raise Refused(f"a name must consist of texts, not {brief(module)} and {brief(name)}")
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{module}.{name}"
