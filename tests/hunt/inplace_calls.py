"""Random calls of in-place methods, each run by PyTorch's CPU build and by Flambeau on tensors that views and autograd share.

    PYTHONPATH=src:tests python -m hunt.inplace_calls --seed 0 --count 20000 [--only index_fill_] [--show 3] [--all]

The written tensor is a leaf, a view of one, or a result; its elements are dense, strided, expanded, overlapping or one
number; arguments may be views of the same memory. Errors and their words, values of the whole memory, layout, version,
autograd node and gradients must be PyTorch's. `CLASSES` says what may differ, worst first; `listed.py`, what is known.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from hunt.api_calls import (
    DTYPES,
    INTERNAL,
    Call,
    Function,
    T,
    _build,
    _carry,
    _is_random,
    _same,
    brief,
    draw,
    functions,
)  # fmt: skip
from hunt.listed import described, listed
from support import from_torch, torch

import flambeau

CLASSES = {
    "internal": "an error of Flambeau's own code came out",
    "value": "other values in the memory of the written tensor",
    "gradient": "another gradient, or backward raises where PyTorch's does not, or not where it does",
    "accepted": "PyTorch raises, Flambeau accepts the call",
    "refused": "PyTorch accepts the call, Flambeau raises",
    "error type": "both raise, Flambeau another type",
    "form": "another dtype, shape, strides or result",
    "node": "another autograd node, or requires_grad or is_leaf differ",
    "version": "the version counter moved differently",
    "message": "both raise the same type with other words",
}
SKIPPED = {"copy_", "resize_", "resize_as_", "requires_grad_", "rename_", "share_memory_", "sparse_resize_",
           "sparse_resize_and_clear_", "resize_as_sparse_", "set_", "detach_", "squeeze_", "unsqueeze_", "t_", "transpose_"}  # fmt: skip

Build = Callable[[Any, Any], tuple[Any, Any, Any]]
"""Make (leaf, memory, written tensor) from a module and its tensor of values, which has a leading dimension of 2."""


def _leaf_view(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    return leaf, leaf, leaf[1]


def _made(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    result = leaf[1].clone()
    return leaf, result, result


def _made_view(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    result = leaf * 1
    return leaf, result, result[1]


def _detached(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    result = leaf * 1
    return leaf, result, result.detach()[1]


def _no_grad_view(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    with module.no_grad():
        return leaf, leaf, leaf[1]


def _one_of_several(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values.requires_grad_()
    result = leaf * 1
    return leaf, result, result.unbind()[1]


def _leaf(module: Any, values: Any) -> tuple[Any, Any, Any]:
    leaf = values[1].clone().requires_grad_()
    return leaf, leaf, leaf


def _plain(module: Any, values: Any) -> tuple[Any, Any, Any]:
    return values, values, values[1]


PLACES: dict[str, Build] = {
    "plain": _plain, "leaf": _leaf, "view of a leaf": _leaf_view, "result": _made, "view of a result": _made_view,
    "detached view": _detached, "view without gradients": _no_grad_view, "one of several views": _one_of_several,
}  # fmt: skip
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1) if x.ndim > 1 else x,
    "strided": lambda x: x[..., ::2] if x.ndim and x.shape[-1] > 1 else x,
    "expanded": lambda x: x[:1].expand(3, *x.shape[1:]) if x.ndim and x.shape[0] else x.expand(3, *x.shape),
    "overlapping": lambda x: x.unfold(0, 2, 1) if x.ndim and x.shape[0] > 1 else x,
    "one number": lambda x: x.flatten()[0] if x.numel() else x,
}


class Write(NamedTuple):
    """A call of an in-place method.

    Attributes:
        call: Its name and arguments; the first one gives shape, dtype and values of the written tensor.
        place: Key of `PLACES`.
        layout: Key of `LAYOUTS`.
        arguments: "", "require grad" or "are views": the tensor arguments of a floating dtype.
        grad_mode: False under `no_grad`.
    """

    call: Call
    place: str
    layout: str
    arguments: str
    grad_mode: bool

    def __str__(self) -> str:
        parts = [
            self.place,
            self.layout,
            self.arguments and f"arguments {self.arguments}",
            "" if self.grad_mode else "no_grad",
        ]
        return f"{self.call} [{', '.join(filter(None, parts))}]"


class Finding(NamedTuple):
    kind: str
    write: Write
    theirs: str
    ours: str

    @property
    def reason(self) -> str:
        """Why the difference is known; empty if it is not."""
        return listed(
            f"in place: {self.kind}", self.write.call.name, described(self.write, self.theirs, self.ours)
        )


def writes(seed: int, count: int, only: str = "") -> Iterator[Write]:
    """The calls of a seed; each has its own generator."""
    chosen = [
        f
        for f in functions()
        if f.room == "Tensor" and f.name[-1] == "_" and f.name not in SKIPPED and only in ("", f.name)
    ]
    rounds = range(-(-count // len(chosen)))
    keys = [(f"{seed}:{turn}:{f.name}", turn, f) for turn in rounds for f in chosen]
    keys.sort(key=lambda drawn: (drawn[1], crc32(drawn[0].encode())))
    for key, _, function in keys[:count]:
        yield _draw(random.Random(key), function)


def _draw(rng: random.Random, function: Function) -> Write:
    call = draw(rng, function)
    first = call.args[0]
    shape = first.shape if isinstance(first, T) else (2, 3)
    dtype = first.dtype if isinstance(first, T) else rng.choice(DTYPES)
    call = call._replace(args=(T(shape, dtype, "", "normal", rng.randrange(100)), *call.args[1:]))
    layout = rng.choice(["", "", "", *LAYOUTS])
    return Write(
        call,
        rng.choice(list(PLACES)),
        layout,
        rng.choice(["", "", "require grad", "are views"]),
        rng.random() < 0.75,
    )


def _floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor | flambeau.Tensor) and (x.is_floating_point() or x.is_complex())


class Outcome(NamedTuple):
    error: Exception | None
    values: Any = None
    form: Any = None
    node: Any = None
    version: Any = None
    gradients: Any = None


def _run(module: Any, write: Write, values: Any, args: list[Any], kwargs: dict[str, Any]) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaf, memory, written = _prepare(module, write, values)
        args, kwargs, leaves = _arguments(write, written, args, kwargs)
        before = written._version
        try:
            with module.set_grad_enabled(write.grad_mode):
                result = getattr(written, write.call.name)(*args, **kwargs)
        except Exception as error:
            return Outcome(error)
        return Outcome(
            None,
            [memory.detach().clone(), written.detach().clone()],
            (
                result is written,
                tuple(written.shape),
                tuple(written.stride()),
                repr(written.dtype),
                repr(memory.dtype),
            ),
            [(_node(t), t.requires_grad) for t in (written, memory)],
            written._version - before,
            _gradients(module, memory, written, [leaf, *leaves]),
        )


def _prepare(module: Any, write: Write, values: Any) -> tuple[Any, Any, Any]:
    """Return (leaf, memory, written tensor)."""
    build = PLACES[write.place if _floating(values) else "plain"]
    leaf, memory, written = build(module, values)
    with module.set_grad_enabled(write.place != "view without gradients"):
        return leaf, memory, LAYOUTS[write.layout](written)


def _arguments(
    write: Write, written: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Return the call's arguments, and those that require gradients."""
    if write.arguments == "are views":

        def view(x: Any) -> Any:
            same = (
                _floating(x)
                and repr(x.dtype) == repr(written.dtype)
                and tuple(x.shape) == tuple(written.shape)
                and x.ndim
            )
            return written.flip(0) * 1 if same and x.ndim % 2 else written.transpose(0, -1) if same else x

        return [view(x) for x in args], {k: view(v) for k, v in kwargs.items()}, []
    leaves = [x.requires_grad_() for x in [*args, *kwargs.values()] if write.arguments and _floating(x)]
    return args, kwargs, leaves


def _node(x: Any) -> str:
    """Return the name of a tensor's autograd node, or the error that reading it raises."""
    try:
        return "" if x.grad_fn is None else re.sub(r"\d+$", "", x.grad_fn.name())
    except RuntimeError as error:
        return brief(error)


def _gradients(module: Any, memory: Any, written: Any, leaves: list[Any]) -> Any:
    """Return the gradients of the memory's and the written tensor's sums, or the error of backward."""
    leaves = [x for x in leaves if x.requires_grad]
    outputs = [t for t in (memory, written) if t.requires_grad]
    if not outputs or not leaves:
        return [len(outputs)]
    try:
        found = module.autograd.grad([(t * 2).sum() for t in outputs], leaves, allow_unused=True)
    except Exception as error:
        return error
    return [module.zeros_like(x) if g is None else g.detach() for x, g in zip(leaves, found, strict=True)]


def judge(write: Write) -> Iterator[Finding]:
    """Run a call by both and yield the worst that differs."""
    first, *args = write.call.args
    stacked = first._replace(shape=(2, *first.shape))
    values = stacked.build()
    theirs_args, theirs_kwargs = (
        [_build(a, {}) for a in args],
        {k: _build(v, {}) for k, v in write.call.kwargs.items()},
    )
    ours = [
        from_torch(values),
        [_carry(a, "cpu") for a in theirs_args],
        {k: _carry(v, "cpu") for k, v in theirs_kwargs.items()},
    ]
    theirs = _run(torch, write, values, theirs_args, theirs_kwargs)
    found = _run(flambeau, write, *ours)
    undefined = _is_random(write.call) or write.layout == "overlapping"
    kind = differs(theirs, found, undefined)
    if kind:
        yield Finding(kind, write, _shown(theirs, kind), _shown(found, kind))


def differs(theirs: Outcome, ours: Outcome, random: bool = False) -> str:
    """Return the class of the worst difference, empty if there is none."""
    if theirs.error or ours.error:
        return _errors_differ(theirs.error, ours.error)
    if theirs.form != ours.form:
        return "form"
    if not random and not _equal(ours.values, theirs.values):
        return "value"
    if _nodes(theirs, theirs) != _nodes(ours, theirs):
        return "node"
    if isinstance(theirs.gradients, Exception) or isinstance(ours.gradients, Exception):
        return "" if type(theirs.gradients) is type(ours.gradients) else "gradient"
    if not random and not _equal(ours.gradients, theirs.gradients):
        return "gradient"
    return "version" if theirs.version != ours.version else ""


def _nodes(outcome: Outcome, theirs: Outcome) -> Any:
    """Return the nodes, without that of a view whose base was changed: PyTorch replaces it by `as_strided`'s."""
    is_replaced = theirs.node[0][0] == "AsStridedBackward"
    return [outcome.node[0][1], outcome.node[1]] if is_replaced else outcome.node


def _equal(ours: Any, theirs: Any) -> bool:
    try:
        _same(ours, theirs)
    except AssertionError:
        return False
    return True


def _errors_differ(theirs: Exception | None, ours: Exception | None) -> str:
    if isinstance(ours, flambeau.NotSupportedError):
        return ""
    if ours is None:
        return "accepted"
    if theirs is None:
        return "internal" if isinstance(ours, INTERNAL) and not isinstance(ours, IndexError) else "refused"
    if type(theirs).__name__.lstrip("_") != type(ours).__name__.lstrip("_"):
        return "error type"
    return "message" if likeness(str(theirs), str(ours)) < 0.4 else ""


def likeness(one: str, other: str) -> float:
    """Return which part of the words of the shorter first sentence the other has, too."""
    words = [set(re.findall(r"[a-z_]{3,}", text.lower().split("\n")[0])) for text in (one, other)]
    fewer = min(map(len, words))
    return len(words[0] & words[1]) / fewer if fewer else 1.0


def _shown(outcome: Outcome, kind: str) -> str:
    if outcome.error:
        return brief(outcome.error)
    part = {"value": outcome.values, "node": outcome.node, "version": outcome.version, "form": outcome.form}
    return brief(part[kind]) if kind in part else f"{brief(outcome.gradients)} {outcome.node}"


def hunt(seed: int, count: int, only: str = "") -> list[Finding]:
    """Try `count` calls of a seed; return what differs, the worst first."""
    found = [finding for write in writes(seed, count, only) for finding in judge(write)]
    worst = list(CLASSES)
    return sorted(found, key=lambda f: (worst.index(f.kind), f.write.call.name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--only", default="", help="the name of one method")
    parser.add_argument("--show", type=int, default=3, help="findings shown for each method and class")
    parser.add_argument("--all", action="store_true", help="show the listed differences, too")
    options = parser.parse_args()
    start = time.monotonic()
    torch.set_num_threads(1)
    found = hunt(options.seed, options.count, options.only)
    findings = [finding for finding in found if options.all or not finding.reason]
    shown: Counter[Any] = Counter()
    for finding in findings:
        key = (finding.kind, finding.write.call.name)
        shown[key] += 1
        if shown[key] <= options.show:
            print(
                f"{finding.kind}: {finding.write}\n    PyTorch:  {finding.theirs}\n    Flambeau: {finding.ours}"
            )
    counts = Counter(finding.kind for finding in findings)
    classes = ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES)
    print(
        f"seed {options.seed}: {options.count} calls in {time.monotonic() - start:.0f} s; {classes}; {len(found) - len(findings)} listed"
    )
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
