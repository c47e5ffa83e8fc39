"""`PickleReader`: reads a pickle of plain data, in work proportional to its size, and calls nothing.

# Note [Why nothing is called]
A pickle is a program for a stack machine. Python's own machine calls whatever the program names; hiding names from it
(`find_class`) still leaves it free to call and to change what the allowed names lead to. This one has no such
instruction: it makes numbers, texts, lists, dicts, sets and tuples. Subclasses allow more, each thing by itself.

# Note [Work in proportion to a file]
Problem: 400 bytes of a pickle make a tuple of 2**100 shared parts, whose hash or `repr` never ends. A tuple that is
nested a million times deep overflows C's stack when it is hashed. Keys that are made to have one hash take quadratic
time. Each of many calls can copy an argument that is pickled once.
Rule: a reader has an allowance of work, so much per byte of the file. Keys spend it by their size, and so does all that
copies or looks through a part of the file again. Keys are at most 100 levels deep, and at most 100 keys of a container
share a hash. Error texts show values by `core.brief`.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO
from pickle import UnpicklingError
from typing import Any

from flambeau.core.brief import brief, brief_text

_PER_BYTE, _BEFORE = 20, 100_000  # steps of work per byte, and in addition
_DEEPEST = 100  # nesting levels of a key
_MOST_ALIKE = 100  # keys of a container with one hash
_MARK = object()
_DAMAGE = (
    IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError, RecursionError,
    NotImplementedError,
)  # fmt: skip


class Refused(UnpicklingError):
    """The error raised if a pickle is damaged or needs something that is not allowed.

    Attributes:
        name: The name that it needs, if that is the reason.
        position: The byte of the pickle at which the reader stopped.
    """

    __module__ = "pickle"

    def __init__(self, text: str, name: str | None = None) -> None:
        super().__init__(text)
        self.name = name
        self.position: int | None = None


class PickleReader:
    """A reader of one pickle, of protocol 2 or newer.

    Args:
        nbytes: Size of the file: the work is proportional to it.
        encoding: Of the byte strings of Python 2; "bytes" leaves them.
    """

    def __init__(self, nbytes: int, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self._allowance = _BEFORE + _PER_BYTE * nbytes
        self._alike: dict[tuple[int, int], int] = {}
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self, file: Any) -> Any:
        """Return the object.

        Raises:
            UnpicklingError: If something is refused, or this is not a pickle.
            EOFError: If it ends early.
        """
        position: int | None = None
        try:
            for opcode, argument, position in opcodes(file):  # noqa: B007 (the handler reads it)
                if opcode.name == "STOP":
                    return self._call_guarded(self._pop)
                self._call_guarded(self._step, opcode, argument)
                if opcode.name == "BINPERSID":  # errors of this call do not mean damage
                    self._push(self.persistent_load(self._call_guarded(self._pop)))
            raise EOFError
        except Refused as error:
            error.position = position
            raise
        except RuntimeError as error:
            error.add_note(f"while the pickle was read at byte {position}")
            raise
        except EOFError:
            if position is None:
                raise EOFError("Ran out of input") from None
            ended = Refused("the pickle ends early")
            ended.position = position
            raise ended from None

    def _call_guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of the reader, and convert any exception that a damaged pickle causes."""
        try:
            return call(*arguments)
        except _DAMAGE as error:
            raise Refused(
                f"the pickle is damaged: {type(error).__name__}: {brief_text(str(error))}"
            ) from error

    def _step(self, opcode: Any, argument: Any) -> None:
        step = _STEPS.get(opcode.name)
        if step is None:
            raise Refused(f"Unsupported operand {ord(opcode.code)} ({opcode.name})")
        step(self, argument)

    def spend(self, work: int) -> None:
        """Subtract steps of work from the allowance. Raises UnpicklingError if it is used up."""
        self._allowance -= work
        if self._allowance < 0:
            raise Refused("reading it would take much more work than its size explains")

    # -- the stack ----------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise IndexError("a mark stands in place of a value")
        return value

    def _pop_to_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:  # without a mark this raises IndexError
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def _tuple(self, n: int) -> None:
        found = tuple(self._stack[-n:])
        if len(found) != n or any(value is _MARK for value in found):
            raise IndexError("stack is too short")
        self._stack[-n:] = [found]

    def _remember(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _string(self, text: str) -> None:  # a string of Python 2; pickletools gives its bytes as latin-1
        raw = text.encode("latin-1")
        self._push(raw if self._encoding == "bytes" else raw.decode(self._encoding))

    # -- containers ---------------------------------------------------------------------------------------

    def _is_list(self, target: Any) -> bool:
        return type(target) is list

    def _is_dict(self, target: Any) -> bool:
        return type(target) is dict

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not self._is_list(target):
            raise Refused(f"Can only append to lists, but got {type(target)}")
        target.extend(values)

    def _update(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not self._is_dict(target):
            raise Refused(f"Can only set items of dicts, but got {type(target)}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            self.check_key(target, key)
            target[key] = value

    def _add(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            raise Refused(f"Can only add to sets, but got {type(target)}")
        for key in values:
            self.check_key(target, key)
            target.add(key)

    def check_key(self, target: Any, key: Any) -> None:
        """Count the cost of putting a key into a dict or a set. Raises UnpicklingError if that would take long."""
        if type(key) is str:  # hashed once, with a secret
            self.spend(1)
            return
        self._spend_hash(key)
        number = hash(key)
        if type(key) is int and number == key:
            return
        alike = self._alike.get((id(target), number), 0) + 1
        if alike > _MOST_ALIKE:
            raise Refused(f"more than {_MOST_ALIKE} keys of one {type(target).__name__} have the same hash")
        self._alike[id(target), number] = alike
        self.spend(alike)

    def _spend_hash(self, key: Any) -> None:
        """Charge the cost of hashing a key, whose parts are hashed as often as they occur."""
        parts, depth = deque([(key, 0)]), 0
        while parts:
            part, depth = parts.pop()
            kind = type(part)
            self.spend(1 + part.bit_length() // 64 if kind is int else 1)
            if isinstance(part, tuple):
                if depth == _DEEPEST:
                    raise Refused(f"a key is a tuple of more than {_DEEPEST} levels")
                parts.extend([(one, depth + 1) for one in part])

    # -- what subclasses allow ----------------------------------------------------------------------------

    def _global(self, module: Any, name: Any) -> None:
        raise Refused(f"it names {brief(module)}.{brief(name)}, and this is to be plain data")

    def persistent_load(self, pid: Any) -> Any:
        """Return the object of a persistent id."""
        raise Refused("it has a persistent id, and this is to be plain data")

    def _reduce(self) -> None:
        raise Refused("it calls something, and this is to be plain data")

    _new = _build = _reduce


def opcodes(file: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield the instructions of a pickle, with their arguments and places, no further than its end."""
    instructions = pickletools.genops(file)
    while True:
        try:
            found: Any = next(instructions)
        except StopIteration:
            return
        except (EOFError, OSError):
            raise
        except Exception as error:  # pickletools' error for bytes that are not an instruction
            if "exhausted" in str(error):
                raise EOFError from None
            raise Refused(f"this is not a pickle, or it is damaged: {brief_text(str(error))}") from None
        yield found


def _nothing(m: PickleReader, argument: Any) -> None:
    pass


PUTS = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
GETS = ("BINGET", "LONG_BINGET")
_Step = Callable[[PickleReader, Any], None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "BINPERSID"), _nothing),
    **dict.fromkeys(
        (
            "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
            "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
        ),
        lambda m, a: m._push(a),
    ),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda m, a: m._string(a)),
    **dict.fromkeys(PUTS, lambda m, a: m._remember(len(m._memo) if a is None else a)),
    **dict.fromkeys(GETS, lambda m, a: m._push(m._memo[a])),
    "NONE": lambda m, a: m._push(None),
    "NEWTRUE": lambda m, a: m._push(True),
    "NEWFALSE": lambda m, a: m._push(False),
    "EMPTY_TUPLE": lambda m, a: m._push(()),
    "EMPTY_LIST": lambda m, a: m._push([]),
    "EMPTY_DICT": lambda m, a: m._push({}),
    "EMPTY_SET": lambda m, a: m._push(set()),
    "MARK": lambda m, a: m._push(_MARK),
    "POP": lambda m, a: _ignore(m._pop()),
    "POP_MARK": lambda m, a: _ignore(m._pop_to_mark()),
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


def _ignore(value: Any) -> None:
    pass


# -- large files of plain data --------------------------------------------------------------------------------

# Note [Plain instructions]
# Python's own machine, in C, reads a million events in a second, a `PickleReader` in half a minute. It is as safe where
# a pickle has only instructions that it cannot be harmed by: no names and no calls; no lengths but those that the
# scanner has followed; memo numbers that the file explains (its memo is an array); ints of at most 8 bytes and tuples
# of two small ones, so that no keys are deep and hardly any share a hash. Whatever has others goes to the PickleReader.
_SIZED = rb"\x8a(?:%b)" % b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(8, -1, -1))
_TEXT = rb"\x8c(?:%b)" % b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(256))
_PAIR = rb"(?:K.|M..|J....)\x86"  # behind an int: the second one, and a tuple of both


def _plain(size: int) -> re.Pattern[bytes]:
    """Return the pattern of plain instructions in a pickle of so many bytes."""
    put = (
        rb"r..[\x00-\x%02x]\x00" % (size >> 16)
        if size < 1 << 24
        else rb"r...[\x00-\x%02x]" % min(size >> 24, 255)
    )
    return re.compile(
        rb"(?:h.(?:h.|%b)?+|[}\])(N\x88\x89suae\x94]|q.|%b|K.(?:%b)?+|J....(?:%b)?+|M..(?:%b)?+|j....|%b|%b|G.{8})*+"
        % (_SIZED, _SIZED, _PAIR, _PAIR, _PAIR, put, _TEXT),
        re.DOTALL,
    )


class _WatchedBytes(BytesIO):
    """A pickle in memory that reports its position whenever the unpickler fetches a part."""

    def __init__(self, data: bytes, watch: Callable[[int], None]) -> None:
        super().__init__(data)
        self._data, self._watch = data, watch

    def peek(self, size: int) -> bytes:
        at = self.tell()
        self._watch(at)
        return self._data[at : at + size]


def read_plain(data: bytes, watch: Callable[[int], None] = lambda nbytes: None) -> Any:
    """Return the object of a pickle of plain data: numbers, texts, bytes, None, and containers of these.

    Args:
        data: The pickle.
        watch: Called with the number of bytes read, to show progress.

    Raises:
        UnpicklingError: If the pickle is damaged, or has other objects.
        EOFError: If `data` is empty.
    """
    if not _is_plain(data):
        return PickleReader(len(data)).load(BytesIO(data))
    try:
        return pickle.load(_WatchedBytes(data, watch))
    except UnpicklingError as error:
        raise Refused(str(error)) from None
    except _DAMAGE as error:
        raise Refused(f"the pickle is damaged: {type(error).__name__}: {brief_text(str(error))}") from None


def _is_plain(data: bytes) -> bool:
    """Return True if a pickle has plain instructions only. See Note [Plain instructions]."""
    at, size = 0, len(data)
    plain = _plain(size)
    while True:
        found = plain.match(data, at)
        at = found.end() if found else at
        code = data[at : at + 1]
        if code == b".":
            return True
        if code == b"\x80":  # the protocol instruction
            at += 2
        elif code == b"\x95":  # a frame: all of the data has been read already
            at += 9
        elif code == b"X":
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        else:
            return False
        if at >= size:
            return False
