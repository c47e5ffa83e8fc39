"""Random torch programs over streams, events, pinned memory and short-lived tensors, and their runs.

A program is a list of steps, tuples of small ints, so that Hypothesis shrinks it; each step means something
whatever came before it, or nothing. What a run saw is its `Outcome`: all that the host read on the way, and
the values of all tensors in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

import flambeau
import flambeau as torch
from flambeau.runtime import system

TENSORS, PINNED, EVENTS, STREAMS, GRAPHS = 4, 2, 2, 3, 2
SIZES = (64, 64, 300, 3000)  # elements: mostly one size, so that memory is reused
PROFILE = "a100-40g"

DEVICES = (0, 0, 0, 1)

# Steps, how likely they are in careless programs, and what their arguments choose from.
T, P, E, S, G = range(TENSORS), range(PINNED), range(EVENTS), range(STREAMS), range(GRAPHS)
SIZE, YES = range(len(SIZES)), (True, False)
STEPS = {
    "nothing": (2,),
    "new": (3, T, DEVICES, SIZE),
    "add": (6, T, T),
    "mul_": (4, T),
    "sum": (2, T, T),
    "into": (3, T, T),
    "half": (2, T, T),
    "copy_": (3, T, T),
    "across": (3, T, T, DEVICES),
    "drop": (3, T),
    "temporary": (3, T),
    "temporaries": (3, T, T),
    "cat": (1, T, T, T),
    "index": (1, T, T),
    "fill_back": (2, T, (1, 2, 3)),
    "pin": (1, P, SIZE),
    "pin_drop": (1, P),
    "upload": (3, P, T, DEVICES, YES),
    "download": (3, P, T, YES),
    "cpu": (2, P, T),
    "write": (2, P, range(10)),
    "read": (1, P),
    "item": (1, T),
    "select": (9, S, DEVICES),
    "hand_over": (4, S),
    "record": (4, E),
    "wait": (4, E),
    "wait_stream": (3, S, S),
    "join": (1, S),
    "record_stream": (4, T, S),
    "sync_event": (1, E),
    "sync_stream": (1, S),
    "sync": (1,),
    "slow": (4, range(5)),
    "empty_cache": (1,),
    "event_drop": (1, E),
    "renew": (1, S),
    # in families of their own
    "empty": (0, T, DEVICES, SIZE),
    "window": (0, T, T, range(4)),
    "column": (0, T, T, range(3)),
    "whole": (0, T, T),
    "resize": (0, T, SIZE),
    "draw": (0, T),
    "sort": (0, T, T),
    "put": (0, T, range(5)),
    "pick": (0, T, T, T),
    "pin_part": (0, P, range(4)),
    "external": (0, S),
    "capture": (0, G, T, T, range(6)),
    "replay": (0, G),
    "graph_drop": (0, G),
    "train": (0, S, T),
    "backward": (0, S, T),
    "gradient": (0, T),
    "step": (0, range(2)),
    "checkpoint": (0, S, T),
    "all_reduce": (0, T, T),
    "broadcast": (0, T, T),
    "gather": (0, T, T, T),
    "ask": (0, E),
    "ask_stream": (0, S),
}
CAREFUL = {"select": 0, "hand_over": 14, "upload": 2, "download": 1, "cpu": 1}  # otherwise as above


def _programs(**weights):
    """Lists of (step, argument, ...). Steps shrink to "nothing": programs of few steps find little."""
    names = [name for name, (weight, *_) in STEPS.items() for _ in range(weights.get(name, weight))]
    few = st.integers(0, 11)
    return st.lists(st.tuples(st.sampled_from(names), few, few, few, few), min_size=24, max_size=32)


_ORDER = {
    "hand_over": 12,
    "wait_stream": 3,
    "record": 3,
    "wait": 4,
    "slow": 3,
    "sync_stream": 1,
    "nothing": 1,
}


def _only(**weights):
    return _programs(**{**dict.fromkeys(STEPS, 0), **weights})


careless = _programs()
# Each change of stream waits for the one before it, and marks the tensors: many of these are race-free.
careful = _programs(**CAREFUL)
# Events recorded, recorded again and waited for at other times, over few tensors.
events = _only(add=5, mul_=5, into=3, select=8, record=6, wait=7, slow=3, sync_event=1, renew=1, nothing=1)
# Blocks that change hands: who may use them still, and what the runtime's polling decides.
tenants = _only(
    new=6, add=4, sum=1, drop=6, record_stream=7, select=7, wait_stream=2, slow=4, temporaries=3, temporary=2,
    empty_cache=1, sync_stream=1, renew=1, nothing=1,
)  # fmt: skip
# Pinned buffers that copies fill and read while the host does.
buffers = _only(
    upload=6, download=6, cpu=4, write=5, read=5, pin=2, pin_drop=3, select=4, slow=3, mul_=4, record=2,
    sync_event=2, sync_stream=3, sync=1, across=1, nothing=1,
)  # fmt: skip
# Slots that share memory, in part or not at all, and memory that is only partly written.
views = _only(
    new=3, empty=3, window=5, column=4, half=2, whole=4, fill_back=3, mul_=4, add=3, into=2, resize=2, put=2,
    pick=2, sort=2, draw=2, item=1, drop=3, select=3, **_ORDER,
)  # fmt: skip
# Graphs beside other work on the same memory: launched anywhere, again, after their streams and captures are gone.
graphs = _only(
    new=3, capture=6, replay=12, graph_drop=2, add=3, mul_=4, into=2, drop=3, temporaries=2, item=1, select=6,
    record_stream=2, empty_cache=1, renew=1, draw=2, **{**_ORDER, "hand_over": 6},
)  # fmt: skip
# Backward walks on streams that the forward pass did not have, over parameters that live on.
gradients = _only(
    new=3, train=6, backward=7, gradient=3, step=3, checkpoint=2, add=3, mul_=2, drop=2, item=1, select=4,
    temporaries=1, record_stream=1, renew=1, **_ORDER,
)  # fmt: skip
# One host, two GPUs: collectives and copies between them.
machines = _only(
    new=5, all_reduce=6, broadcast=4, gather=3, across=4, copy_=3, mul_=4, add=3, drop=2, item=1, select=5, join=4,
    record_stream=2, sync=1, external=2, pin_part=2, upload=2, download=2, read=1, **_ORDER,
)  # fmt: skip
# The program asks whether work is done, and goes by the answer.
askers = _only(
    new=3, add=4, mul_=4, into=2, sum=1, ask=3, ask_stream=2, record=5, wait=4, select=5, slow=3, drop=3,
    temporaries=2, sync_event=2, sync_stream=2, hand_over=4, nothing=1,
)  # fmt: skip
FAMILIES = {
    "careless": careless,
    "careful": careful,
    "events": events,
    "tenants": tenants,
    "buffers": buffers,
    "views": views,
    "graphs": graphs,
    "gradients": gradients,
    "machines": machines,
    "askers": askers,
}


@dataclass
class Outcome:
    """What a run saw, and what the detector made of it."""

    values: list
    certificate: object
    trace: str

    @property
    def race_free(self):
        return self.certificate.race_free


class Run:
    """Interprets a program. Tensors lie in slots; a step that needs an empty slot's does nothing."""

    def __init__(self):
        self.tensors = [None] * TENSORS
        self.pinned = [None] * PINNED
        self.events = [None] * EVENTS
        self.streams = {}
        self.graphs = [None] * GRAPHS  # (graph, device)
        self.parameters = [torch.full((64,), 1.0, device="cuda:0", requires_grad=True) for _ in range(2)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.5, momentum=0.5)
        self.loss = None
        self.seen = []
        self.count = 0
        for slot in range(TENSORS):
            self.new(slot, int(slot == TENSORS - 1), slot)
        for slot in range(PINNED):
            self.pin(slot, slot)

    def stream(self, which, device=None):
        """Stream 0 of a device is its default stream, the others are made when first used."""
        device = torch.cuda.current_device() if device is None else device
        if which == 0:
            return torch.cuda.default_stream(device)
        if (device, which) not in self.streams:
            made = self.streams[device, which] = torch.cuda.Stream(device)
            made.wait_stream(torch.cuda.default_stream(device))
        return self.streams[device, which]

    def step(self, name, *arguments):
        _, *ranges = STEPS[name]
        chosen = [values[a % len(values)] for values, a in zip(ranges, arguments, strict=False)]
        getattr(self, {"put": "put_at", "step": "step_"}.get(name, name))(*chosen)

    def nothing(self):
        pass

    def put(self, slot, value):
        """Keep a result; its tensor and what was there before die as in a program."""
        self.tensors[slot] = value

    def number(self):
        self.count += 1
        return float(self.count)

    def here(self, slot):
        """The tensor of a slot if it is on the current device."""
        t = self.tensors[slot]
        return t if t is not None and t.device.index == torch.cuda.current_device() else None

    # -- work
    def new(self, slot, device, size):
        self.put(slot, torch.full((SIZES[size],), self.number(), device=f"cuda:{device}"))

    def add(self, slot, other):
        t = self.tensors[other]
        if t is not None:
            self.put(slot, t + self.number())

    def mul_(self, slot):
        t = self.tensors[slot]
        if t is not None:
            t.mul_(3).remainder_(1009)

    def sum(self, slot, other):
        t = self.tensors[other]
        if t is not None:
            self.put(slot, t.sum().reshape(1))

    def into(self, slot, other):
        to, t = self.tensors[slot], self.tensors[other]
        if alike(to, t) and to.device == t.device:
            torch.add(t, self.number(), out=to)

    def half(self, slot, other):
        t = self.tensors[other]
        if t is not None and t.numel() > 1:
            self.put(slot, t[t.numel() // 2 :])

    def copy_(self, slot, other):
        to, t = self.tensors[slot], self.tensors[other]
        if alike(to, t):
            to.copy_(t)

    def across(self, slot, other, device):
        t = self.tensors[other]
        if t is not None:
            self.put(slot, t.to(f"cuda:{device}", non_blocking=True))

    def drop(self, slot):
        self.tensors[slot] = None

    def temporary(self, slot):
        t = self.tensors[slot]
        if t is not None:
            t.add_((t * 2 + self.number()).remainder(97))

    def temporaries(self, slot, other):
        """Short-lived tensors of the current stream, then a use of the other tensor."""
        torch.full((64,), self.number(), device="cuda").mul_(2).add_(1)
        self.add(slot, other)

    def cat(self, slot, a, b):
        a, b = self.tensors[a], self.tensors[b]
        if a is not None and b is not None and a.device == b.device:
            self.put(slot, torch.cat([a, b])[:64].clone())

    def index(self, slot, other):
        t = self.tensors[other]
        if t is not None and t.numel() > 4:
            self.put(slot, t[::3].contiguous())

    def fill_back(self, slot, step):
        t = self.tensors[slot]
        if t is not None:
            t[::step] = self.number()

    def empty(self, slot, device, size):
        self.put(slot, torch.empty((SIZES[size],), device=f"cuda:{device}"))

    def window(self, slot, other, at):
        """A part of another slot's tensor, which overlaps with other parts."""
        t = self.tensors[other]
        if t is not None and t.numel() > 16:
            self.put_view(slot, t[at * 4 : at * 4 + t.numel() // 2])

    def column(self, slot, other, at):
        """One of three columns that lie interleaved."""
        t = self.tensors[other]
        if t is not None and t.numel() > 16:
            self.put_view(slot, t[at::3])

    def put_view(self, slot, view):
        self.tensors[slot] = view

    def whole(self, slot, other):
        """As `add`, into memory that both slots may share."""
        to, t = self.tensors[slot], self.tensors[other]
        if to is not None and t is not None and to.device == t.device:
            to.mul_(2).add_(t.sum() % 7)

    def resize(self, slot, size):
        t = self.tensors[slot]
        if t is not None and t._base is None and not t.storage_offset():
            t.resize_(SIZES[size])
            t.fill_(self.number())

    def draw(self, slot):
        t = self.tensors[slot]
        if t is not None:
            t.random_(0, 50)

    def sort(self, slot, other):
        t = self.tensors[other]
        if t is not None:
            values, order = torch.sort(t, descending=True)
            self.put(slot, values + order % 5)

    def put_at(self, slot, at):
        t = self.tensors[slot]
        if t is not None and t.numel() > 16:
            t.index_put_((torch.arange(at, 10, 2, device=t.device),), t[:1].clone(), accumulate=True)
            t.remainder_(1009)

    def pick(self, slot, other, chooser):
        t, c = self.tensors[other], self.tensors[chooser]
        if t is not None and c is not None and c.device == t.device:
            self.put(slot, t[(c[:8].abs() % t.numel()).nan_to_num(0, 0, 0).long().clamp(0, t.numel() - 1)])

    # -- graphs
    def capture(self, slot, one, other, what):
        """A graph of two tensors of the current device, perhaps of two streams, perhaps with a short-lived tensor."""
        a, b = self.here(one), self.here(other)
        here = torch.cuda.current_stream()
        if a is None or b is None:
            return
        if here == torch.cuda.default_stream():
            here = torch.cuda.Stream()
        graph, inner = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=here):
            if what & 1:
                inner.wait_stream(here)
                with torch.cuda.stream(inner):
                    a.mul_(3).remainder_(1009)
            if what & 2:
                a.add_((b[:1] * 2).sum() % 97)
            if what & 4:
                b.random_(0, 9)
            else:
                b.add_(1)
            if what & 1:
                here.wait_stream(inner)
        self.graphs[slot] = graph, here.device_index

    def replay(self, slot):
        if self.graphs[slot] is not None and self.graphs[slot][1] == torch.cuda.current_device():
            self.graphs[slot][0].replay()

    def graph_drop(self, slot):
        self.graphs[slot] = None

    # -- gradients
    def train(self, which, slot):
        """A loss, on a stream."""
        t = self.tensors[slot]
        if t is not None and t.device.index == 0 and t.numel() >= 64:
            with torch.cuda.stream(self.stream(which, 0)):
                first, second = self.parameters
                self.loss = ((first * t[:64].remainder(5)).sum() + (first * second).sum()) / 64

    def backward(self, which, slot):
        """Perhaps on another stream, perhaps with a gradient that a slot's tensor gives."""
        if self.loss is not None:
            loss, self.loss = self.loss, None
            t = self.tensors[slot]
            given = t.sum().remainder(3) if t is not None and t.device.index == 0 and slot % 2 else None
            with torch.cuda.stream(self.stream(which, 0)):
                loss.backward(given)

    def gradient(self, slot):
        if self.parameters[0].grad is not None:
            self.put(slot, self.parameters[0].grad.remainder(11))

    def step_(self, zero):
        if torch.cuda.current_device() == 0:
            self.loss = None  # it was computed with what changes now
            self.optimizer.step()
            if zero:
                self.optimizer.zero_grad()

    def checkpoint(self, which, slot):
        t = self.tensors[slot]
        if t is not None and t.device.index == 0 and t.numel() >= 64:
            with torch.cuda.stream(self.stream(which, 0)):
                self.loss = torch.utils.checkpoint.checkpoint(
                    lambda p, x: (p * x).sigmoid().sum(),
                    self.parameters[1],
                    t[:64].clone(),
                    use_reentrant=False,
                )

    # -- GPUs among themselves
    def pair(self, one, other):
        """Two tensors of one size, of the two devices in their order."""
        found = [self.tensors[one], self.tensors[other]]
        found.sort(key=lambda t: -1 if t is None else t.device.index)
        alike = all(t is not None and t.is_contiguous() and t.shape == found[0].shape for t in found)
        return found if alike and found[0].device != found[1].device else None

    def all_reduce(self, one, other):
        found = self.pair(one, other)
        if found is not None:
            torch.cuda.nccl.all_reduce(found)
            for t in found:
                with torch.cuda.device(t.device):
                    t.remainder_(1009)

    def broadcast(self, one, other):
        found = self.pair(one, other)
        if found is not None:
            torch.cuda.nccl.broadcast(found)

    def gather(self, slot, one, other):
        found = self.pair(one, other)
        if found is not None:
            self.put(slot, torch.nn.parallel.comm.gather(found, destination=0)[:64].clone())

    # -- questions
    def ask(self, slot):
        if self.events[slot] is not None and self.events[slot].query():
            self.seen.append("done")

    def ask_stream(self, which):
        if self.stream(which).query():
            self.seen.append("done")

    # -- host
    def pin_part(self, slot, at):
        """From now on the slot is a part of its buffer."""
        p = self.pinned[slot]
        if p is not None and p.numel() > 64:
            self.pinned[slot] = p[at : at + 64]

    def external(self, which):
        """The current stream waits for another one that it knows by its handle."""
        handle = self.stream(which).cuda_stream
        if handle:
            torch.cuda.current_stream().wait_stream(torch.cuda.ExternalStream(handle))

    def pin(self, slot, size):
        self.pinned[slot] = torch.full((SIZES[size],), self.number()).pin_memory()

    def pin_drop(self, slot):
        self.pinned[slot] = None

    def upload(self, slot, target, device, non_blocking):
        p = self.pinned[slot]
        if p is not None:
            self.put(target, p.to(f"cuda:{device}", non_blocking=non_blocking))

    def download(self, slot, source, non_blocking):
        p, t = self.pinned[slot], self.tensors[source]
        if p is not None and t is not None and p.shape == t.shape:
            p.copy_(t, non_blocking=non_blocking)

    def cpu(self, slot, source):
        t = self.tensors[source]
        if t is not None:
            self.pinned[slot] = t.to("cpu", non_blocking=True)

    def write(self, slot, value):
        p = self.pinned[slot]
        if p is not None:
            p.fill_(float(value))

    def read(self, slot):
        p = self.pinned[slot]
        if p is not None:
            self.seen.append(p.tolist())

    def item(self, slot):
        t = self.tensors[slot]
        if t is not None:
            self.seen.append(t.sum().item())

    # -- order
    def select(self, which, device):
        torch.cuda.set_stream(self.stream(which, device))

    def hand_over(self, which):
        before, after = torch.cuda.current_stream(), self.stream(which)
        after.wait_stream(before)
        for t in self.tensors:
            if t is not None and t.device == after.device:
                t.record_stream(after)
        torch.cuda.set_stream(after)

    def record(self, slot):
        e = self.events[slot]
        if e is None or e.device is None or e.device.index != torch.cuda.current_device():
            e = self.events[slot] = torch.cuda.Event()
        e.record()

    def wait(self, slot):
        if self.events[slot] is not None:
            self.events[slot].wait()

    def wait_stream(self, later, earlier):
        self.stream(later).wait_stream(self.stream(earlier))

    def join(self, which):
        """The current stream waits for a stream of the other device."""
        other = 1 - torch.cuda.current_device()
        torch.cuda.current_stream().wait_stream(self.stream(which, other))

    def record_stream(self, slot, which):
        t = self.tensors[slot]
        if t is not None:
            t.record_stream(self.stream(which, t.device.index))

    def sync_event(self, slot):
        if self.events[slot] is not None:
            self.events[slot].synchronize()

    def sync_stream(self, which):
        self.stream(which).synchronize()

    def sync(self):
        torch.cuda.synchronize()

    def slow(self, size):
        torch.cuda._sleep(1000 * 10**size)

    def empty_cache(self):
        torch.cuda.empty_cache()

    def event_drop(self, slot):
        self.events[slot] = None

    def renew(self, which):
        """The stream's object goes, its queued work stays; later uses make a new stream."""
        device = torch.cuda.current_device()
        if self.streams.get((device, which)) != torch.cuda.current_stream():
            self.streams.pop((device, which), None)

    def finish(self):
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        self.seen += [None if t is None else t.tolist() for t in self.tensors + self.pinned + self.parameters]


def alike(to, source):
    """Two tensors of one shape that share no memory, unless they are one."""
    if to is None or source is None or to.shape != source.shape:
        return False
    return to is source or to.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def run(program, schedule="earliest", races="warn", between=None, **options):
    """Run a program on two fresh devices. `between` is called before each step."""
    with flambeau.virtual(devices=2, profile=PROFILE, schedule=schedule, races=races, **options) as machine:
        program_run = Run()
        torch.manual_seed(0)  # the CPU's numbers are the process's: tests before this one drew some
        for step in program:
            if between is not None:
                between()
            program_run.step(*step)
        program_run.finish()
        driver = system.accelerator()
        certificate = driver.detector.certificate() if races != "off" else None
        return Outcome(program_run.seen, certificate, machine.driver.trace_hash())
