"""`Program`: a valid sequence of steps, the model of their effects, and the source that Python runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from flambeau.testing.soundness.model import Host, Invalid, Model
from flambeau.testing.soundness.order_steps import EVENTS
from flambeau.testing.soundness.program_steps import OPERATIONS, BlockOperation, Step

STREAMS = {"main": 0, "s1": 0, "s2": 0, "s3": 0, "peer": 1, "t1": 1}  # by name: device
_GROUPS = {"group0": 0, "group1": 1}  # the groups of streams of the ranks' process group
_CREATED = {
    "main": "torch.cuda.default_stream(0)",
    "s1": "torch.cuda.Stream(0)",
    "s2": "torch.cuda.Stream(0)",
    "s3": "torch.cuda.Stream(0, priority=-1)",
    "peer": "torch.cuda.default_stream(1)",
    "t1": "torch.cuda.Stream(1)",
}
_INDENT = "    "
_LISTS = "seen, kept = [], []"
_SYNCHRONIZE = "torch.cuda.synchronize(0), torch.cuda.synchronize(1)"
_NAME = re.compile(r"\b[a-z]\w*\b")

Where = tuple[int, ...]
"""The place of a step: its number, and within a block the number there."""

_NOTHING: Mapping[Where, str] = {}

Line = tuple[str, Where | None]
"""A line of a script, and the place of its step, if it is one's."""


@dataclass(eq=False)
class Program:
    """A program. `keep` returns a program with fewer steps.

    Attributes:
        steps: The steps that are valid; others are dropped when the program is created.
        model: The effects of the steps.
        meets: See `Model.meets`.
        where: The model's line -> the place of the step.
    """

    steps: tuple[Step, ...]
    meets: bool = False
    model: Model = field(init=False, repr=False)
    where: list[Where] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps, self.steps = self.steps, ()
        self._begin()
        for step in steps:
            self.add(step)

    def _begin(self) -> None:
        self.model, self.where = Model({**STREAMS, **_GROUPS}), []
        self.model.meets = self.meets

    def add(self, step: Step) -> bool:
        """Append a step if it is valid, a block with its valid inner steps. Returns True if it was appended."""
        try:
            self.steps += (self._apply(step, (len(self.steps),)),)
        except Invalid:
            if isinstance(OPERATIONS[step.operation], BlockOperation):  # it was begun
                self._begin()
                for at, before in enumerate(self.steps):
                    self._apply(before, (at,))
            return False
        return True

    def _apply(self, step: Step, place: Where) -> Step:
        """Apply a step to the model. Return it, a block without the steps that do not fit."""
        model, kind = self.model, OPERATIONS[step.operation]
        if step.host not in model.hosts or model.hosts[step.host].ended:
            raise Invalid
        model.host, model.here = model.hosts[step.host], step.stream or "main"
        model.line = len(self.where)
        self.where.append(place)
        if not isinstance(kind, BlockOperation):
            kind.apply(model, *step.arguments)
        else:
            kind.begin(model, *step.arguments)
            step = step._replace(inner=self._apply_block(kind, step.inner, place))
            kind.end(model, *step.arguments)
        model.host.calls |= 1 << model.line
        return step

    def _apply_block(self, block: BlockOperation, steps: Sequence[Step], outer: Where) -> tuple[Step, ...]:
        fitting: list[Step] = []
        for step in steps:
            if step.operation in block.inner:
                with suppress(Invalid):
                    fitting.append(self._apply(step, (*outer, len(fitting))))
        if not fitting:
            raise Invalid
        return tuple(fitting)

    # -- source -------------------------------------------------------------------------------------------
    @property
    def source(self) -> str:
        """Return the program as a script."""
        return self.script()[0]

    def script(self, after: Mapping[Where, str] = _NOTHING) -> tuple[str, list[Where | None]]:
        """Return the script, and for each of its lines the place of its step.

        Args:
            after: Statements that follow steps, by the steps' places.
        """
        body = _of_ranks(self, after) if self.model.ranks else _of_threads(self, after)
        names = {name for line, _ in body for name in _NAME.findall(line)} | {"torch"}
        imports = [f"import {module}" for module in ("queue", "threading", "torch") if module in names]
        lines = [*_code(*imports, ""), *_header(names), *body]
        return "\n".join(line for line, _ in lines) + "\n", [place for _, place in lines]

    def waits(self, steps: Iterable[int]) -> dict[Where, str]:
        """Return statements by which the host waits for the devices, to insert after steps."""
        return dict.fromkeys(
            [(at,) for at in steps], "torch.cuda.synchronize()" if self.model.ranks else _SYNCHRONIZE
        )

    def lines_of(self, host: int, after: Mapping[Where, str] = _NOTHING) -> list[Line]:
        """Return the lines of a host's steps."""
        steps = [
            ((at,), step)
            for at, step in enumerate(self.steps)
            if host in OPERATIONS[step.operation].hosts(step)
        ]
        return list(_lines_of_steps(steps, host, after))


def _of_threads(program: Program, after: Mapping[Where, str]) -> list[Line]:
    """Return the lines of one host, followed by those of the thread that it starts, if there is one."""
    hosts = program.model.hosts
    if len(hosts) == 1:
        return [
            *_code(_LISTS, ""),
            *program.lines_of(0, after),
            *_code("", _SYNCHRONIZE, f"print({_outcome_text(hosts[0])})"),
        ]
    join = [] if hosts[1].ended else ["thread.join()"]
    return [
        *_code(_LISTS, "there, back, flag = queue.Queue(), queue.Queue(), threading.Event()", "left = []", ""),
        *_code("def body():", _INDENT + _LISTS),
        *_indent(program.lines_of(1, after)),
        *_code(f"{_INDENT}left.extend([seen, kept, {_names_text(hosts[1])}])", ""),
        *_code("thread = threading.Thread(target=body)"),
        *program.lines_of(0, after),
        *_code("", *join, _SYNCHRONIZE),
        *_code(f"print({_outcome_text(hosts[0])}, left[0], [[t.tolist() for t in ts] for ts in left[1:]])"),
    ]  # fmt: skip


def _of_ranks(program: Program, after: Mapping[Where, str]) -> list[Line]:
    lines = _code("")
    for rank in (0, 1):
        lines += _code(f"def rank{rank}():", _INDENT + _LISTS)
        lines += _indent(program.lines_of(rank, after))
        last = ("torch.cuda.synchronize()", f"values = {_outcome_text(program.model.hosts[rank])}")
        lines += _code(
            *[_INDENT + line for line in (*last, "dist.destroy_process_group()", "return values")], ""
        )
    return [
        *lines,
        *_code("print(torch.testing.ranks(lambda: (rank0, rank1)[torch.cuda.current_device()](), 2))"),
    ]


def _outcome_text(host: Host) -> str:
    return f"seen, [t.tolist() for t in kept], [t.tolist() for t in {_names_text(host)}]"


def _names_text(host: Host) -> str:
    return f"[{', '.join(sorted(host.names))}]"


def _code(*lines: str) -> list[Line]:
    return [(line, None) for line in lines]


def _indent(lines: Iterable[Line]) -> list[Line]:
    return [(_INDENT + line, place) for line, place in lines]


def _lines_of_steps(
    steps: Iterable[tuple[Where, Step]], host: int, after: Mapping[Where, str] = _NOTHING
) -> Iterator[Line]:
    """Yield the lines of steps, with consecutive steps of one stream in one block."""
    stream = ""
    for place, step in steps:
        if step.stream and step.stream != stream:
            yield f"with torch.cuda.stream({step.stream}):", None
        stream = step.stream
        indent = _INDENT if stream else ""
        for line in OPERATIONS[step.operation].source_of(host, *step.arguments).split("\n"):
            yield indent + line, place
        inner = [((*place, at), inner) for at, inner in enumerate(step.inner)]
        for line, where in _lines_of_steps(inner, host, after):
            yield indent + _INDENT + line, where
        if place in after:
            yield indent + after[place], None


def _header(names: Collection[str]) -> Iterator[Line]:
    """Yield the lines that define the objects to which the lines of steps refer."""
    if "dist" in names:
        yield "dist = torch.distributed", None
    for stream, created in _CREATED.items():
        if stream in names:
            yield f"{stream} = {created}", None
    for event in EVENTS:
        if event in names:
            yield f"{event} = torch.cuda.Event()", None
