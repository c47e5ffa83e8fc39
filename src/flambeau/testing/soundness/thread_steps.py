"""Steps of host threads: start, end and messages; and of ranks, which join collectives."""

from __future__ import annotations

from typing import Any

from flambeau.testing.soundness.model import Host, Model, ModelView, need
from flambeau.testing.soundness.program_steps import SLOTS, Draw, Operation, Step, operation

THREAD = 1  # the number of the second host


class HandOver(Operation):
    on_stream = False
    feature = "threads"


def only(model: Model, host: int) -> None:
    need(model.host.number == host)


@operation
class Start(HandOver):
    weight = 0

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        need(THREAD not in model.hosts)
        model.hosts[THREAD] = Host(THREAD, model.host.known, model.host.calls | 1 << model.line)

    def source(self) -> str:
        return "thread.start()"


@operation
class Join(HandOver):
    weight = 0

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        only(model, 0)
        need(THREAD in model.hosts and not model.hosts[THREAD].ended)
        other = model.hosts[THREAD]
        other.ended = True
        model.changes.append(model.touch("thread")._replace(host=other, calls=other.calls))
        model.host.known |= other.known
        model.host.calls |= other.calls

    def source(self) -> str:
        return "thread.join()"


QUEUES = ("there", "back")  # by the host that puts


@operation
class Put(HandOver):
    """A step that passes a tensor to the other thread."""

    weight = 6

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        need(len(draw.model.hosts) > 1)
        return QUEUES[draw.model.host.number], draw.draw_name(
            lambda view: view.device >= 0 and view.is_ordinary
        )

    def apply(self, model: Model, queue: str, name: str) -> None:
        need(queue == QUEUES[model.host.number] and len(model.hosts) > 1 and not model.ranks)
        view = model[name]
        model.changes.append(model.touch(queue))
        del model.host.names[name]
        model.queues.setdefault(queue, []).append(
            (model.host.known, model.host.calls | 1 << model.line, view)
        )

    def source(self, queue: str, name: str) -> str:
        return f"{queue}.put({name})\ndel {name}"


@operation
class Get(HandOver):
    weight = 8

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        queue = QUEUES[1 - draw.model.host.number]
        need(draw.model.queues.get(queue))
        return queue, draw.one(SLOTS)

    def apply(self, model: Model, queue: str, name: str) -> None:
        need(queue == QUEUES[1 - model.host.number] and model.queues.get(queue))
        known, calls, view = model.queues[queue].pop(0)
        model.host.known |= known
        model.host.calls |= calls
        model.changes.append(model.touch(queue))
        view.storage.refs -= 1  # the queue's
        model.bind(name, view)

    def source(self, queue: str, name: str) -> str:
        return f"{name} = {queue}.get()"


@operation
class SetFlag(HandOver):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        only(model, 0)
        need(len(model.hosts) > 1 and not model.ranks and model.flag is None)
        model.changes.append(model.touch("flag"))
        model.flag = model.host.known, model.host.calls | 1 << model.line

    def source(self) -> str:
        return "flag.set()"


@operation
class WaitForFlag(HandOver):
    weight = 1
    synchronizes = True

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        only(model, THREAD)
        need(model.flag is not None and not model.ranks)
        model.host.known |= model.flag[0]
        model.host.calls |= model.flag[1]

    def source(self) -> str:
        return "flag.wait()"


# -- what asks ----------------------------------------------------------------------------------------------


@operation
class Ask(HandOver):
    """A step that reads a state that the other thread may change. Without synchronization the result depends on
    timing.
    """

    weight = 1
    feature = "asking"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (
            draw.one(
                ("flag.is_set()", "there.qsize()", "there.empty()", "back.empty()", "thread.is_alive()")
            ),
        )

    def apply(self, model: Model, question: str) -> None:
        need(len(model.hosts) > 1 and not model.ranks)
        model.questions.append(model.touch(question.split(".")[0]))

    def source(self, question: str) -> str:
        return f"seen.append({question})"


# -- ranks --------------------------------------------------------------------------------------------------


@operation
class Ranks(HandOver):
    """The first step of a program of two ranks, each of which has the streams of one device."""

    weight = 0

    def hosts(self, step: Step) -> tuple[int, ...]:
        return (0, 1)

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        need(not model.before and len(model.hosts) == 1)
        model.ranks = True
        model.hosts[1] = Host(1)

    def source(self) -> str:
        return 'dist.init_process_group("nccl")'


class Meeting(Operation):
    """A step of both ranks."""

    feature = "ranks"
    on_stream = False

    def hosts(self, step: Step) -> tuple[int, ...]:
        return (0, 1)


@operation
class AllReduce(Meeting):
    """A sum over both ranks, on the current stream of each, or on the stream of the group."""

    weight = 5

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        mine, theirs = (draw.model.hosts[rank].names for rank in (0, 1))
        fitting = [n for n in sorted(mine) if n in theirs and _fit(mine[n], theirs[n])]
        return draw.one(fitting), draw.one(("main", "s1")), draw.one(("peer", "t1")), draw.chance(0.5)

    def apply(self, model: Model, name: str, first: str, second: str, own: bool) -> None:
        need(model.ranks and model.device_of[first] == 0 and model.device_of[second] == 1)
        names = [model.hosts[rank].names for rank in (0, 1)]
        need(all(name in each for each in names) and _fit(names[0][name], names[1][name]))
        need(not own or not model.works)
        before: list[int] = []
        streams = [f"group{rank}" for rank in (0, 1)] if own else [first, second]
        for rank, (here, stream) in enumerate(zip((first, second), streams, strict=True)):
            model.host, view = model.hosts[rank], names[rank][name]
            model.wait(stream, model.nodes_before_next(here))
            before.append(model.nodes_before_next(stream))
            model.launch([view], [view], stream)
            if own:
                view.storage.life.protected |= 1 << (len(model.before) - 1)
                view.storage.refs += 1
                model.works.append(view.storage)
        for rank, stream in enumerate(streams if model.meets else ()):
            model.host = model.hosts[rank]
            model.wait(stream, before[1 - rank])
        model.host = model.hosts[0]

    def source_of(self, host: int, name: str, first: str, second: str, own: bool) -> str:
        call = f"work = dist.all_reduce({name}, async_op=True)" if own else f"dist.all_reduce({name})"
        return f"with torch.cuda.stream({(first, second)[host]}):\n    {call}"


@operation
class WaitForWork(Meeting):
    weight = 5
    synchronizes = True

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        need(draw.model.works)
        return draw.one(("main", "s1")), draw.one(("peer", "t1"))

    def apply(self, model: Model, first: str, second: str) -> None:
        need(model.works)
        works, model.works = model.works, []
        for rank, stream in enumerate((first, second)):
            model.host = model.hosts[rank]
            model.wait(stream, model.streams[f"group{rank}"])
        for storage in works:
            model.unref(storage)
        model.host = model.hosts[0]

    def source_of(self, host: int, first: str, second: str) -> str:
        return f"with torch.cuda.stream({(first, second)[host]}):\n    work.wait()\ndel work"


def _fit(mine: ModelView, theirs: ModelView) -> bool:
    alike = (mine.shape, mine.dtype, mine.contiguous) == (theirs.shape, theirs.dtype, True)
    return alike and mine.device == 0 and theirs.device == 1 and mine.is_ordinary and theirs.is_ordinary
