"""`Machine`: reads a pickle and calls nothing that is not on its list.

# Note [Why weights_only is safe]
A pickle is a program for a stack machine. Python's own machine calls whatever the program names; hiding names
from it (`find_class`) still leaves it free to call and to change what the allowed names lead to. This one has
no such instruction: what can be called are the functions and types of a list, by identity; what can be filled
are lists, dicts and sets that the pickle itself made; what can be given attributes are ordered dicts (of
strings), and objects of types that the program's user has declared safe. Everything else is refused by name.
"""

from __future__ import annotations

import _codecs
import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from flambeau.serialization import names
from flambeau.serialization.names import Name
from flambeau.tensor import pickling
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
_ALLOWED = _PLAIN | names.REBUILDERS | names.TYPES | names.VALUES
_BY_NAME = {f"{module}.{name}": thing for (module, name), thing in _ALLOWED.items()}
_CALLABLE = [*_PLAIN.values(), *names.REBUILDERS.values(), *names.TYPES.values()]
_MARK = object()


class Refused(UnpicklingError):
    """The pickle needs something that is not allowed: `name` says what, if it was a name."""

    __module__ = "pickle"

    def __init__(self, text: str, name: str | None = None) -> None:
        super().__init__(text)
        self.name = name


class Machine:
    """Reads one pickle, of protocol 2 or newer, from a file.

    Args:
        persistent_load: gives the storage that a persistent id stands for.
        declared: things that the user declared safe, by full name.
        encoding: of the byte strings of Python 2.
    """

    def __init__(
        self, persistent_load: Callable[[Any], Any], declared: dict[str, Any], encoding: str = "utf-8"
    ) -> None:
        self._persistent_load = persistent_load
        self._declared = declared
        self._encoding = encoding
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self, file: Any) -> Any:
        """The object. Raises UnpicklingError: something is refused, or this is no pickle; EOFError: it ends early."""
        for opcode, argument, _ in _opcodes(file):
            if opcode.name == "STOP":
                return self._pop()
            if opcode.name == "BINPERSID" and self._stack:  # what this raises is no damage
                self._push(self._persistent_load(self._pop()))
                continue
            step = _STEPS.get(opcode.name)
            if step is None:
                raise Refused(f"Unsupported operand {ord(opcode.code)} ({opcode.name})")
            try:
                step(self, argument)
            except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise Refused(f"the pickle is damaged: {opcode.name} failed ({error!r})") from error
        raise EOFError("Ran out of input")

    # -- the stack ----------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:  # below the first there is none: IndexError
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def _drop(self) -> None:
        self._pop()

    def _drop_to_mark(self) -> None:
        self._pop_to_mark()

    def _tuple(self, n: int) -> None:
        found = tuple(self._stack[-n:])
        if len(found) != n:
            raise IndexError("stack is too short")
        self._stack[-n:] = [found]

    # -- names and calls ----------------------------------------------------------------------------------

    def _global(self, module: str, name: str) -> None:
        full = _full(module, name)
        found = _BY_NAME.get(full)
        if found is None:
            found = self._declared.get(full)
        if found is None:
            shown = full.removeprefix("builtins.")
            raise Refused(
                f"Unsupported global: GLOBAL {shown} was not an allowed global by default. Please use "
                f"`torch.serialization.add_safe_globals([{shown}])` or the "
                f"`torch.serialization.safe_globals([{shown}])` context manager to allowlist this global if "
                "you trust this class/function.",
                full,
            )
        self._push(found)

    def _is_declared(self, what: Any) -> bool:
        return any(what is one for one in self._declared.values())

    def _reduce(self) -> None:
        arguments = self._pop()
        define = self._pop()
        if not isinstance(arguments, tuple):
            raise Refused(f"cannot call {define!r} with {type(arguments).__name__}, which is no tuple")
        if not (any(define is one for one in _CALLABLE) or self._is_declared(define)):
            raise Refused(f"Trying to call reduce for unrecognized function {define!r}")
        if define is pickling.rebuild_subclass:
            self._check_subclass(*arguments)
        if define is _codecs.encode and arguments[1:] != ("latin1",):
            raise Refused(f"_codecs.encode stands for bytes, in latin1, not for {arguments[1:]!r}")
        self._push(define(*arguments))

    def _check_subclass(self, define: Any, kind: Any, arguments: Any, state: Any) -> None:
        """A tensor of a subclass: built by a function of the list, into a type of the list, its state a dict."""
        known = [f for f in names.REBUILDERS.values() if f is not pickling.rebuild_subclass]
        if not any(define is one for one in known):
            raise Refused(f"Trying to call reduce for unrecognized function {define!r}")
        if not (any(kind is one for one in names.TYPES.values()) or self._is_declared(kind)):
            raise Refused(f"Trying to make a tensor of unrecognized type {kind!r}")
        if not isinstance(kind, type) or not issubclass(kind, Tensor) or not _is_state(state):
            raise Refused(f"Trying to make a tensor of type {kind!r} with the state {state!r}")

    def _new(self) -> None:
        arguments = self._pop()
        kind = self._pop()
        if not (kind is OrderedDict or kind is Counter or self._is_declared(kind)):
            raise Refused(f"Trying to create new object for unrecognized class {kind!r}")
        self._push(kind.__new__(kind, *arguments))

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1]
        if type(target) is OrderedDict and _is_state(state):
            target.__dict__.update(state)
        elif self._is_declared(type(target)):
            _set_state(target, state)
        else:
            raise Refused(
                "Can only build Tensor, Parameter, OrderedDict or types allowlisted via "
                f"`add_safe_globals`, but got {type(target)}"
            )

    # -- containers ---------------------------------------------------------------------------------------

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list and not self._is_declared(type(target)):
            raise Refused(f"Can only append to lists, but got {type(target)}")
        target.extend(values)

    def _update(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict, Counter) and not self._is_declared(type(target)):
            raise Refused(f"Can only set items of dicts, but got {type(target)}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[key] = value

    def _add(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            raise Refused(f"Can only add to sets, but got {type(target)}")
        target.update(values)

    def _remember(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _string(self, text: str) -> None:  # of Python 2; pickletools gives its bytes as latin-1
        raw = text.encode("latin-1")
        self._push(raw if self._encoding == "bytes" else raw.decode(self._encoding))


def _opcodes(file: Any) -> Any:
    """The instructions, one by one, no further than the pickle's end."""
    instructions = pickletools.genops(file)
    while True:
        try:
            yield next(instructions)
        except StopIteration:
            return
        except (ValueError, Warning) as error:  # pickletools' words for bytes that are no instruction
            if "exhausted" in str(error):
                raise EOFError("Ran out of input") from None
            raise Refused(f"this is no pickle, or it is damaged: {error}") from None


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and all(type(key) is str for key in state)


def _set_state(target: Any, state: Any) -> None:
    """As Python's own machine does, for objects of types that the user declared safe."""
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        target.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(target, name, value)


def _nothing(m: Machine, argument: Any) -> None:
    pass


_PUTS = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_GETS = ("BINGET", "LONG_BINGET")
_Step = Callable[[Machine, Any], None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(
        (
            "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
            "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
        ),
        lambda m, a: m._push(a),
    ),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda m, a: m._string(a)),
    **dict.fromkeys(_PUTS, lambda m, a: m._remember(len(m._memo) if a is None else a)),
    **dict.fromkeys(_GETS, lambda m, a: m._push(m._memo[a])),
    "NONE": lambda m, a: m._push(None),
    "NEWTRUE": lambda m, a: m._push(True),
    "NEWFALSE": lambda m, a: m._push(False),
    "EMPTY_TUPLE": lambda m, a: m._push(()),
    "EMPTY_LIST": lambda m, a: m._push([]),
    "EMPTY_DICT": lambda m, a: m._push({}),
    "EMPTY_SET": lambda m, a: m._push(set()),
    "MARK": lambda m, a: m._push(_MARK),
    "POP": lambda m, a: m._drop(),
    "POP_MARK": lambda m, a: m._drop_to_mark(),
    "TUPLE1": lambda m, a: m._tuple(1),
    "TUPLE2": lambda m, a: m._tuple(2),
    "TUPLE3": lambda m, a: m._tuple(3),
    "TUPLE": lambda m, a: m._push(tuple(m._pop_to_mark())),
    "LIST": lambda m, a: m._push(m._pop_to_mark()),
    "APPEND": lambda m, a: m._extend([m._pop()]),
    "APPENDS": lambda m, a: m._extend(m._pop_to_mark()),
    "SETITEM": lambda m, a: m._update([m._stack.pop(-2), m._pop()]),
    "SETITEMS": lambda m, a: m._update(m._pop_to_mark()),
    "ADDITEMS": lambda m, a: m._add(m._pop_to_mark()),
    "GLOBAL": lambda m, a: m._global(*a.split(" ", 1)),
    "STACK_GLOBAL": lambda m, a: m._global(m._stack.pop(-2), m._pop()),
    "REDUCE": lambda m, a: m._reduce(),
    "NEWOBJ": lambda m, a: m._new(),
    "BUILD": lambda m, a: m._build(),
}  # fmt: skip


def refused_names(data: bytes, declared: dict[str, Any]) -> list[str]:
    """The names in a pickle that a `Machine` refuses. Runs nothing."""
    found: dict[str, None] = {}
    strings: list[Any] = []  # what was pushed last, as far as it was a string
    memo: dict[int, Any] = {}
    for opcode, argument, _ in _opcodes(data):
        if opcode.name == "GLOBAL":
            found[_full(*argument.split(" ", 1))] = None
        elif opcode.name == "STACK_GLOBAL":
            found[_full(*strings[-2:])] = None
        elif opcode.name in _PUTS:
            memo[len(memo) if argument is None else argument] = strings[-1] if strings else None
        elif opcode.name in _GETS:
            strings.append(memo.get(argument))
        else:
            strings.append(argument)
    return [name for name in found if name not in _BY_NAME and name not in declared]


def _full(module: str, name: str) -> str:
    """The full name of Python 3, of a module and a name that may be Python 2's (protocol 2 has those)."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{module}.{name}"
