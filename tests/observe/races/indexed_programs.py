"""Random programs with indexed access on several streams, and which of their lines race, worked out with NumPy alone.

Each step is one line of a program's text. A step touches elements of base tensors; what orders steps is what CUDA's
documentation says: order in a stream, events, waits of the host. Two lines race if two of their steps touch an element,
one of them writing, and the transitive closure of the order leaves them unordered.
"""

from __future__ import annotations

import random

import numpy as np

import flambeau as torch
from flambeau.core.callsite import line_of
from flambeau.runtime import system

SHAPES = [(24,), (6, 4), (2, 6, 4)]
VIEWS = ["{}", "{}[1:]", "{}[::2]", "{}[1::2]", "{}.transpose(0, -1)", "{}[..., 1:3]", "{}.flatten()[3:17]"]


class Program:
    """A random program: its `text`, and its `steps`, which touch elements (tensor, offset) or order others.

    Args:
        changing: Index tensors change as the program runs.
        graphs: Some steps are captured, and replayed.
        empty: Some tensors begin without values.
    """

    def __init__(
        self,
        seed: int,
        steps: int = 9,
        streams: int = 3,
        changing: bool = False,
        graphs: bool = False,
        empty: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.streams, self.changing, self.graphs, self.empty = streams, changing or graphs, graphs, empty
        self.written: dict[str, np.ndarray] = {}  # whether an element has a value
        self.unwritten: set[int] = set()  # lines that read elements without one, if no steps race
        self.bases: dict[str, np.ndarray] = {}  # the elements that tensors are views of, as numbers
        self.lines: list[str] = []
        self.steps: list[tuple] = []
        self._start()
        for _ in range(steps):
            self._step()
        self.text = "\n".join(self.lines) + "\n"

    # -- text ---------------------------------------------------------------------------------------------------
    def line(self, text: str) -> int:
        self.lines.append(text)
        return len(self.lines)

    def base(self, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.bases)}"
        self.bases[name] = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        begins_empty = self.empty and self.random.random() < 0.7
        self.written[name] = np.full(int(np.prod(shape)), not begins_empty)
        if begins_empty:
            self.line(f"{name} = torch.empty({shape}, device='cuda')")
        else:
            self.line(f"{name} = torch.arange({int(np.prod(shape))}., device='cuda').reshape({shape})")
        return name

    def _start(self) -> None:
        for _ in range(self.random.randint(1, 2)):
            self.base(self.random.choice(SHAPES))
        if self.changing:
            self.base((6, 4))
        self.tensors = list(self.bases)
        self.line("indices = make_indices()")
        self.indices: list[np.ndarray] = []
        self.values = {name: np.zeros(2, np.int64) for name in ("j0", "j1")} if self.changing else {}
        for name in self.values:
            self.line(f"{name} = torch.zeros(2, dtype=torch.int64, device='cuda')")
        self.captured: list[list[tuple]] = []  # of each graph: (what, line, tensor, elements, index)
        for _ in range(2 if self.graphs else 0):
            self._capture()
        self.line("torch.cuda.synchronize()")

    def constant(self, value: np.ndarray) -> str:
        self.indices.append(value)
        return f"indices[{len(self.indices) - 1}]"

    # -- steps --------------------------------------------------------------------------------------------------
    def _step(self) -> None:
        kinds = {"indexed": 6, "whole": 2, "order": 3, "change": 3 * self.changing, "replay": 4 * self.graphs}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, f"_{kind}")()

    # -- indices that change ------------------------------------------------------------------------------------
    def _change(self) -> None:
        """Change an index tensor, or use it."""
        stream, name = self.random.randrange(self.streams), self.random.choice(list(self.values))
        if self.random.random() < 0.5:
            value = np.array([self.random.randrange(4) for _ in range(2)])
            line = self.run_on(stream, f"{name}.copy_({self.constant(value)})")
            self.values[name] = value
            self.touch(stream, line, name, writes=range(2))
            return
        how, text, base, x = self._use(name)
        line = self.run_on(stream, text)
        self._touch_by(stream, line, how, name, base, x)

    def _use(self, index: str) -> tuple[str, str, str, np.ndarray]:
        """A use of the first rows of a tensor that an index names."""
        base = self.random.choice(
            [t for t in self.tensors if self.bases[t].shape[0] >= 4] or [self.base((6, 4))]
        )
        how = self.random.choice(["get", "fill", "add"])
        x = self.bases[base][:4] if self.bases[base].ndim == 1 else self.bases[base][:4, ..., 1:3]
        view = f"{base}[:4]" if x.ndim == 1 else f"{base}[:4, ..., 1:3]"
        texts = {
            "get": f"keep({view}[{index}])",
            "fill": f"{view}.index_fill_(0, {index}, 1.)",
            "add": f"{view}.index_add_(0, {index}, ones({(2, *x.shape[1:])}))",
        }
        return how, texts[how], base, x

    def _touch_by(self, stream: int, line: int, how: str, index: str, base: str, x: np.ndarray) -> None:
        places = x[self.values[index]]
        reads, writes = () if how == "fill" else places, () if how == "get" else places
        self.touch(stream, line, index, reads=range(2))
        self.touch(stream, line, base, reads, writes)

    # -- graphs -------------------------------------------------------------------------------------------------
    def _capture(self) -> None:
        number = len(self.captured)
        self.line(f"g{number} = torch.cuda.CUDAGraph()")
        self.line(f"with torch.cuda.graph(g{number}, stream=s[0]):")
        steps = []
        for _ in range(self.random.randint(1, 2)):
            index = self.random.choice(list(self.values))
            if self.random.random() < 0.3:
                steps.append(("change", self.line(f"    {index}.add_(1); {index}.fmod_(4)"), index))
                continue
            how, text, base, x = self._use(index)
            steps.append((how, self.line(f"    {text}"), index, base, x))
        self.captured.append(steps)

    def _replay(self) -> None:
        stream, number = self.random.randrange(self.streams), self.random.randrange(len(self.captured))
        self.run_on(stream, f"g{number}.replay()")
        self.steps.append(("after", stream, number))  # after its last launch
        for what, line, index, *rest in self.captured[number]:
            if what == "change":
                self.values[index] = (self.values[index] + 1) % 4
                self.touch(stream, line, index, range(2), range(2))
            else:
                self._touch_by(stream, line, what, index, *rest)
        self.steps.append(("launched", stream, number))

    def _order(self) -> None:
        a, b = self.random.sample(range(self.streams), 2)
        how = self.random.choice(["wait", "sync", "device", "event"])
        if how == "wait":
            self.line(f"s[{a}].wait_stream(s[{b}])")
            self.steps.append(("wait", a, b))
        elif how == "sync":
            self.line(f"s[{a}].synchronize()")
            self.steps.append(("sync", a))
        elif how == "device":
            if self.random.random() < 0.3:
                self.line("torch.cuda.synchronize()")
                self.steps.append(("device",))
        else:
            self.line(f"e = s[{a}].record_event(); s[{b}].wait_event(e)")
            self.steps.append(("wait", b, a))

    def view(self) -> tuple[str, str, np.ndarray]:
        """A view's text, its base, and its elements."""
        name = self.random.choice(self.tensors)
        elements = self.bases[name]
        while True:
            text = self.random.choice(VIEWS).format(name)
            found = elements.swapaxes(0, -1) if "transpose" in text else eval(text, {name: elements})
            if found.size:
                return text, name, found

    def touch(self, stream: int, line: int, name: str, reads=(), writes=()) -> None:
        r = {(name, int(x)) for x in np.ravel(reads)} if len(np.ravel(reads)) else set()
        w = {(name, int(x)) for x in np.ravel(writes)} if len(np.ravel(writes)) else set()
        self.steps.append(("touch", stream, line, r, w))
        if name in self.written:
            if not all(self.written[name][offset] for _, offset in r):
                self.unwritten.add(line)
            self.written[name][[offset for _, offset in w]] = True

    def run_on(self, stream: int, text: str) -> int:
        return self.line(f"with torch.cuda.stream(s[{stream}]): {text}")

    def _whole(self) -> None:
        stream = self.random.randrange(self.streams)
        text, name, elements = self.view()
        how = self.random.choice(["fill_", "add_", "clone"])
        line = self.run_on(
            stream, {"fill_": f"{text}.fill_(1)", "add_": f"{text}.add_(1)"}.get(how, f"keep({text}.clone())")
        )
        self.touch(stream, line, name, elements if how != "fill_" else (), elements if how != "clone" else ())

    def vector(self, size: int, unique: bool = False, negative: bool = False) -> np.ndarray:
        """Indices of a dimension: few of them, neighbours, so that programs of both verdicts are common."""
        r = self.random
        count = r.choice([0, 1, 2, 2, 3])
        low = r.randrange(size)
        found = [(low + r.randrange(3)) % size for _ in range(count)]
        if unique:
            found = list(dict.fromkeys(found))
        if negative:
            found = [x - size if r.random() < 0.4 else x for x in found]
        return np.array(found, r.choice([np.int64, np.int64, np.int32]))

    def _indexed(self) -> None:
        stream = self.random.randrange(self.streams)
        text, name, x = self.view()
        dim = self.random.randrange(x.ndim)
        family = self.random.choice(
            [self._select, self._select, self._grid, self._flat, self._mask, self._several]
        )
        family(stream, text, name, x, dim)

    def _select(self, stream, text, name, x, dim) -> None:
        how = self.random.choice(
            [
                "index_select",
                "index_copy_",
                "index_add_",
                "index_fill_",
                "index_reduce_",
                "get",
                "set",
                "embedding",
                "add_at",
            ]
        )
        wrap = how in ("get", "set", "index_fill_", "add_at")
        idx = self.vector(x.shape[dim], negative=wrap)
        if how in ("get", "set", "add_at", "embedding"):
            dim = 0
            idx = self.vector(x.shape[0], negative=wrap)
        places = (
            np.take(x, idx, dim, mode="wrap" if not wrap else "raise")
            if not wrap
            else np.take(x, idx % x.shape[dim], dim)
        )
        shape = list(x.shape)
        shape[dim] = len(idx)
        i = self.constant(idx)
        ones = f"ones({tuple(shape)})"
        if how == "index_select" or (how == "embedding" and x.ndim != 2):
            line = self.run_on(stream, f"keep({text}.index_select({dim}, {i}))")
            self.touch(stream, line, name, reads=places)
        elif how == "embedding":
            line = self.run_on(stream, f"keep(torch.nn.functional.embedding({i}, {text}))")
            self.touch(stream, line, name, reads=places)
        elif how == "get":
            line = self.run_on(stream, f"keep({text}[{i}])")
            self.touch(stream, line, name, reads=places)
        elif how == "set":
            line = self.run_on(stream, f"{text}[{i}] = {self.random.choice(['5.', ones])}")
            self.touch(stream, line, name, writes=places)
        elif how == "add_at":
            line = self.run_on(stream, f"{text}.index_put_(({i},), {ones}, accumulate=True)")
            self.touch(stream, line, name, places, places)
        elif how == "index_fill_":
            line = self.run_on(stream, f"{text}.index_fill_({dim}, {i}, 2.)")
            self.touch(stream, line, name, writes=places)
        elif how == "index_copy_":
            line = self.run_on(stream, f"{text}.index_copy_({dim}, {i}, {ones})")
            self.touch(stream, line, name, writes=places)
        elif how == "index_add_":
            line = self.run_on(stream, f"{text}.index_add_({dim}, {i}, {ones})")
            self.touch(stream, line, name, places, places)
        else:
            reduce = self.random.choice(["amax", "prod", "mean"])
            include = self.random.random() < 0.5
            line = self.run_on(
                stream, f"{text}.index_reduce_({dim}, {i}, {ones}, {reduce!r}, include_self={include})"
            )
            if reduce == "mean":
                places = x
            self.touch(stream, line, name, places if include or reduce == "mean" else (), places)

    def _grid(self, stream, text, name, x, dim) -> None:
        size = x.shape[dim]
        shape = [
            self.random.randint(0, min(n, 3)) if d != dim else self.random.randint(0, 3)
            for d, n in enumerate(x.shape)
        ]
        if self.random.random() < 0.3:  # a vector that is expanded
            vector = self.vector(size)
            shape[dim] = len(vector)
            idx = np.broadcast_to(vector.reshape([-1 if d == dim else 1 for d in range(x.ndim)]), shape)
            i = f"{self.constant(vector)}.reshape({[-1 if d == dim else 1 for d in range(x.ndim)]}).expand({shape})"
        else:
            low = self.random.randrange(size)
            idx = np.array(
                [(low + self.random.randrange(2)) % size for _ in range(int(np.prod(shape)))], np.int64
            ).reshape(shape)
            i = self.constant(idx)
        if idx.size:
            grids = list(np.indices(idx.shape))
            grids[dim] = idx
            places = x[tuple(grids)]
        else:
            places = np.zeros(0, np.int64)
        ones = f"ones({tuple(idx.shape)})"
        how = self.random.choice(["gather", "scatter_", "scatter_value", "scatter_add_", "scatter_reduce_"])
        if how == "gather":
            line = self.run_on(stream, f"keep({text}.gather({dim}, {i}))")
            self.touch(stream, line, name, reads=places)
        elif how == "scatter_":
            line = self.run_on(stream, f"{text}.scatter_({dim}, {i}, {ones})")
            self.touch(stream, line, name, writes=places)
        elif how == "scatter_value":
            line = self.run_on(stream, f"{text}.scatter_({dim}, {i}, 3.)")
            self.touch(stream, line, name, writes=places)
        elif how == "scatter_add_":
            line = self.run_on(stream, f"{text}.scatter_add_({dim}, {i}, {ones})")
            self.touch(stream, line, name, places, places)
        else:
            reduce, include = self.random.choice(["sum", "amin", "mean"]), self.random.random() < 0.5
            line = self.run_on(
                stream, f"{text}.scatter_reduce_({dim}, {i}, {ones}, {reduce!r}, include_self={include})"
            )
            if reduce == "mean":
                self.touch(stream, line, name, x, x)
            else:
                self.touch(stream, line, name, places if include else (), places)

    def _flat(self, stream, text, name, x, dim) -> None:
        idx = self.vector(x.size, negative=True).astype(np.int64)
        places, i, ones = x.ravel()[idx], self.constant(idx), f"ones(({len(idx)},))"
        how = self.random.choice(["take", "put_", "put_add"])
        if how == "take":
            line = self.run_on(stream, f"keep({text}.take({i}))")
            self.touch(stream, line, name, reads=places)
        else:
            line = self.run_on(stream, f"{text}.put_({i}, {ones}, accumulate={how == 'put_add'})")
            self.touch(stream, line, name, places if how == "put_add" else (), places)

    def _mask(self, stream, text, name, x, dim) -> None:
        mask = np.array([self.random.random() < 0.2 for _ in range(x.size)]).reshape(x.shape)
        i = self.constant(mask)
        how = self.random.choice(["get", "set", "masked_fill_", "rows"])
        if how == "masked_fill_":
            line = self.run_on(stream, f"{text}.masked_fill_({i}, 1.)")
            written = self.written[name].copy()
            self.written[name][:] = True  # it stores what it has loaded: that is no use of the values
            self.touch(stream, line, name, x, x)
            written[x[mask]] = True
            self.written[name] = written
            return
        if how == "get":
            line = self.run_on(stream, f"keep({text}[{i}])")
            self.steps.append(("sync", stream))
            self.touch(stream, line, name, reads=x[mask])
            return
        if how == "rows":
            rows = np.array([self.random.random() < 0.3 for _ in range(x.shape[0])])
            line = self.run_on(
                stream, f"{text}[{self.constant(rows)}] = ones({(int(rows.sum()), *x.shape[1:])})"
            )
            self.steps.append(("sync", stream))
            self.touch(stream, line, name, writes=x[rows])
            return
        line = self.run_on(stream, f"{text}[{i}] = ones(({int(mask.sum())},))")
        self.steps.append(("sync", stream))
        self.touch(stream, line, name, writes=x[mask])

    def _several(self, stream, text, name, x, dim) -> None:
        """Two index tensors, adjacent or not."""
        if x.ndim < 2:
            return self._flat(stream, text, name, x, dim)
        count = self.random.randint(1, 2)
        first, last = ([self.random.randrange(n) for _ in range(count)] for n in (x.shape[0], x.shape[-1]))
        i, j = self.constant(np.array(first)), self.constant(np.array(last))
        places = x[np.array(first), ..., np.array(last)]
        if self.random.random() < 0.5:
            line = self.run_on(stream, f"keep({text}[{i}, ..., {j}])")
            self.touch(stream, line, name, reads=places)
        else:
            line = self.run_on(stream, f"{text}[{i}, ..., {j}] = 4.")
            self.touch(stream, line, name, writes=places)
        return None

    # -- verdicts -----------------------------------------------------------------------------------------------
    def racing(self) -> set[tuple[int, int]]:
        """The pairs of lines that race."""
        n = len(self.steps)
        before = np.zeros((n, n), bool)
        last: dict[int, int | None] = dict.fromkeys(range(self.streams))
        launches: dict[int, int] = {}
        host = None
        for k, (what, *rest) in enumerate(self.steps):
            sources = [host]
            if what in ("after", "launched"):
                sources += [last[rest[0]], launches.get(rest[1])]
                last[rest[0]] = launches[rest[1]] = k
            elif what == "touch":
                sources.append(last[rest[0]])
                last[rest[0]] = k
            elif what == "wait":
                sources += [last[rest[0]], last[rest[1]]]
                last[rest[0]] = k
            else:
                sources += [last[rest[0]]] if what == "sync" else list(last.values())
                host = k
            for source in sources:
                if source is not None:
                    before[source, k] = True
        for k in range(n):  # Warshall
            before |= np.outer(before[:, k], before[k])
        touches = [(k, *rest) for k, (what, *rest) in enumerate(self.steps) if what == "touch"]
        return {
            (line, other)
            for a, stream, line, reads, writes in touches
            for b, stream2, other, reads2, writes2 in touches
            if a < b and not before[a, b] and (writes & (reads2 | writes2) or reads & writes2)
        }

    def run(self, schedule: str = "earliest") -> object:
        """Run it on virtual GPUs; the detector's certificate."""
        with torch.virtual(devices=1, races="warn", schedule=schedule):
            kept: list[object] = []
            names: dict[str, object] = {
                "torch": torch,
                "s": [torch.cuda.Stream() for _ in range(self.streams)],
                "keep": kept.append,
                "make_indices": lambda: [torch.from_numpy(i).cuda() for i in self.indices],
                "ones": lambda shape: torch.ones(shape, device="cuda"),
            }
            exec(compile(self.text, "indexed_program.py", "exec"), names)
            torch.cuda.synchronize()
            certificate = system.accelerator().detector.certificate()
            kept.clear()
            names.clear()
            return certificate

    def index_races(self) -> bool:
        """Whether a tensor races that the values of indices come from."""
        kept = self.steps
        self.steps = [
            (*step[:3], *[{e for e in elements if e[0] in self.values} for elements in step[3:]])
            if step[0] == "touch"
            else step
            for step in kept
        ]
        found = bool(self.racing())
        self.steps = kept
        return found


def mistake(program: Program, certificate) -> str:
    """What the certificate says otherwise than the reference; empty if nothing."""
    expected, found = program.racing(), reported(certificate)
    if bool(found) != bool(expected):
        return f"races {found}, expected {expected}"
    if expected:
        wrong = found - expected
        return f"no races: {wrong}" if wrong and not program.index_races() else ""
    lines = {int(text.split(":")[1].split()[0]) for text in certificate.violated}
    if bool(lines) != bool(program.unwritten) or lines - program.unwritten:
        return f"reads unwritten memory at {lines}, expected {program.unwritten}: {certificate}"
    return ""


def reported(certificate) -> set[tuple[int, int]]:
    """The pairs of lines that a certificate names."""
    return {(line_of(race.first.site), line_of(race.second.site)) for race in certificate.races}
