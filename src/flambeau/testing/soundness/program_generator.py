"""`generate`: a random program of a seed, mostly without races, or with few."""

from __future__ import annotations

import random
from bisect import bisect
from contextlib import suppress
from itertools import accumulate

from flambeau.testing.soundness import (  # noqa: F401 (they register)
    device_steps,
    gradient_steps,
    graph_steps,
    host_steps,
    indexed_steps,
    order_steps,
    tensor_steps,
    thread_steps,
)
from flambeau.testing.soundness.model import Invalid, ModelRace
from flambeau.testing.soundness.program_steps import OPERATIONS, BlockOperation, Draw, Step
from flambeau.testing.soundness.programs import STREAMS, Program

FEATURES = frozenset(
    {
        "questions",
        "graphs",
        "devices",
        "autocast",
        "gradients",
        "training",
        "indexed",
        "converting",
        "arrays",
        "aliases",
        "threads",
        "asking",
        "ranks",
    }
)


_SETTINGS = {  # the first steps of programs of a theme
    "autocast": [("weight", ("p", 3)), ("new", ("u", (8, 8), 5))],
    "gradients": [("weight", ("p", 3)), ("new", ("u", (8, 8), 5))],
    "training": [("weight", ("p", 3)), ("new", ("u", (8, 8), 5)), ("loss", ("loss0", "p", "u"))],
    "indexed": [("index", ("i", (0, 1, 2, 3))), ("index", ("j", (5, 4, 7))), ("new", ("u", (8, 8), 5))],
    "arrays": [("pin", ("h", (64,), 5)), ("to_array", ("a", "h"))],
    "aliases": [("pin", ("h", (64,), 5)), ("to_array", ("a", "h")), ("from_array", ("g", "a"))],
    "converting": [("pin", ("h", (64,), 5)), ("pin", ("g", (64,), 7))],
}


class ProgramGenerator:
    """The builder of one program. It draws once which streams and steps the program has, and how careful it is."""

    def __init__(self, seed: int | str, features: frozenset[str] = FEATURES, layout: str = "") -> None:
        self.rng = rng = random.Random(f"program {seed}")
        self.program = Program(())
        self.draw = Draw(rng, self.program.model, features)
        self.careful = rng.choice((0.0, 0.7, 0.95, 1.0, 1.0, 1.0))
        layouts = (16, 2 * ("threads" in features), "ranks" in features)
        drawn = rng.choices(("one", "threads", "ranks"), layouts)[0]
        self.layout = layout or drawn
        self.streams = self._streams()  # the streams of each host
        alone = {
            "one": {"threads", "asking", "ranks"},
            "threads": {"ranks"},
            "ranks": {"threads", "asking", "devices"},
        }
        features -= alone[self.layout]
        self.theme = rng.choice(["", *sorted(features)])
        self.names, self.weights = self._kinds(features)

    def _streams(self) -> list[list[str]]:
        rng = self.rng
        if self.layout == "threads":
            return [["main", "s1"], ["s2", "s3"]]
        if self.layout == "ranks":
            return [["main", "s1"], ["peer", "t1"]]
        devices = (0, 1) if rng.random() < 0.25 else (0,)
        others = [name for name, device in STREAMS.items() if device in devices and name != "main"]
        return [["main", *rng.sample(others, min(rng.choice((1, 2, 3)), len(others)))]]

    def _kinds(self, features: frozenset[str]) -> tuple[list[str], list[float]]:
        """Return the kinds of steps and their cumulative weights. The kinds of the program's theme are frequent."""
        # By module, because the draws of a seed may not depend on which module was imported first.
        operations = sorted(OPERATIONS.items(), key=lambda item: type(item[1]).__module__)
        names = [n for n, kind in operations if not kind.feature or kind.feature in features]
        weights = []
        for kind in (OPERATIONS[name] for name in names):
            usual = self.rng.choice((0, 0.5, 1, 1, 2)) if kind.weight < 6 else 1
            weights.append(kind.weight * (5 if self.theme and kind.feature == self.theme else usual))
        return names, list(accumulate(weights))

    def run(self) -> Program:
        """Return the program."""
        length = self.rng.randrange(10, 36)
        if self.layout == "ranks":
            self.program.add(Step("ranks"))
        for slot in ("x", "y"):
            for host in self.program.model.hosts:
                self._add(Step("new", (slot, (64,), self.draw.number()), self.streams[host][0], host))
        for operation, arguments in _SETTINGS.get(self.theme, ()):
            self._add(
                Step(operation, arguments, self.streams[0][0] if OPERATIONS[operation].on_stream else "")
            )
        if self.layout == "threads":
            self.program.add(Step("start"))
        for _ in range(12 * length):
            if len(self.program.steps) >= length:
                break
            with suppress(Invalid):
                step = self._step()
                self._keep_what_ends(step)
                self._add(step)
        return self.program

    def _step(self) -> Step:
        name = self.names[bisect(self.weights, self.rng.random() * self.weights[-1])]
        kind, model = OPERATIONS[name], self.program.model
        host = self.draw.one([h for h in model.hosts if not model.hosts[h].ended])
        model.host, self.draw.streams = model.hosts[host], self.streams[host]
        stream = self._stream() if kind.on_stream else ""
        model.here = stream or "main"
        step = Step(name, kind.draw(self.draw), stream, host)
        return step._replace(inner=self._inner(step, kind)) if isinstance(kind, BlockOperation) else step

    def _stream(self) -> str:
        """Return one of the host's streams; seldom another host's."""
        if self.layout == "threads" and self.draw.chance(0.02):
            return self.draw.one(self.streams[0] + self.streams[1])
        return self.draw.one(self.draw.streams)

    def _inner(self, block: Step, kind: BlockOperation) -> tuple[Step, ...]:
        """Draw the steps of a block, each from the state that the block would leave without that step."""
        streams = [s for s in self.draw.streams if self.program.model.device_of[s] == 0] or ["main"]
        first: list[Step] = []
        last: list[Step] = []
        if kind.captures:  # one stream, or two of which the second joins the capture and is joined again
            origin = block.arguments[1]
            others = [s for s in streams if s not in (origin, "main")][: self.rng.randrange(2)]
            streams = [origin, *others]
            first = [Step("wait_stream", (other, origin)) for other in others]
            last = [Step("wait_stream", (origin, other)) for other in others]
        inner: list[Step] = []
        for _ in range(self.rng.randrange(2, 8)):
            copy = Program(self.program.steps)
            copy.add(block._replace(inner=(*first, *inner, *last)))
            self.draw.model = copy.model
            name = self.rng.choice(kind.inner)
            copy.model.host = copy.model.hosts[block.host]
            stream = copy.model.here = self.draw.one(streams)
            with suppress(Invalid):
                arguments = OPERATIONS[name].draw(self.draw)
                inner.append(Step(name, arguments, stream if OPERATIONS[name].on_stream else "", block.host))
        self.draw.model = self.program.model
        return (*first, *inner, *last)

    def _keep_what_ends(self, step: Step) -> None:
        """Copy, with some probability, a tensor that a step removes or overwrites: the outcome then shows its value."""
        kind, name = OPERATIONS[step.operation], step.arguments[0] if step.arguments else None
        model = self.program.model
        view = model.hosts[step.host].names.get(name) if isinstance(name, str) else None
        if (
            kind.synchronizes
            or view is None
            or not view.is_ordinary
            or view.device < 0
            or not self.draw.chance(0.5)
        ):
            return
        last = view.storage.life.accesses
        streams = [s for s in self.streams[step.host] if model.device_of[s] == view.device]
        if last and streams and view.numel <= 300:
            after = [s for s in streams if model.nodes_before_next(s) >> last[-1].node & 1]
            self._add(Step("keep", (name,), self.rng.choice(after or streams), step.host))

    def _add(self, step: Step) -> None:
        """Append a step. A careful program first adds the needed synchronization, or skips the step."""
        steps, model = self.program.steps, self.program.model
        known, nodes = len(model.races), len(model.before)
        if not self.program.add(step):
            self.draw.model = self.program.model
            return
        races = self.program.model.races[known:]
        if races and self.rng.random() < self.careful:
            self.program = Program(steps)
            for race in races:
                if race.first < nodes:
                    self._order(race, step)
            self.program.add(step)
            if len(self.program.model.races) > known:
                self.program = Program(steps)
        self.draw.model = self.program.model

    def _order(self, race: ModelRace, step: Step) -> None:
        """Append a synchronization that orders a race's first node before the next step, unless one exists."""
        model, rng = self.program.model, self.rng
        model.host = model.hosts[step.host]
        bit, later = 1 << race.first, step.stream
        if (model.nodes_before_next(later) if later else model.host.known) & bit:
            return
        events = [name for name, known in model.events.items() if known & bit]
        streams = [s for s in self.streams[step.host] if model.streams[s] & bit]
        for _ in range(4):
            if events and rng.random() < 0.6:
                name, arguments = "event", rng.choice(events)
            elif streams:
                name, arguments = "stream", rng.choice(streams)
            else:
                continue
            if not later or rng.random() < 0.15:
                order = Step(f"synchronize_{name}", (arguments,), host=step.host)
            else:
                order = Step(f"wait_{name}", (later, arguments), host=step.host)
            if self.program.add(order):
                return


def generate(seed: int | str, features: frozenset[str] = FEATURES, layout: str = "") -> Program:
    """Return a random program. `layout` is "one" (host thread), "threads" or "ranks"; by default it is drawn."""
    return ProgramGenerator(seed, features, layout).run()
