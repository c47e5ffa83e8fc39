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

TENSORS, PINNED, EVENTS, STREAMS = 4, 2, 2, 3
SIZES = (64, 64, 300, 3000)  # elements: mostly one size, so that memory is reused
PROFILE = "a100-40g"

DEVICES = (0, 0, 0, 1)

# Steps, how likely they are in careless programs, and what their arguments choose from.
T, P, E, S = range(TENSORS), range(PINNED), range(EVENTS), range(STREAMS)
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
}
CAREFUL = {"select": 0, "hand_over": 14, "upload": 2, "download": 1, "cpu": 1}  # otherwise as above


def _programs(**weights):
    """Lists of (step, argument, ...). Steps shrink to "nothing": programs of few steps find little."""
    names = [name for name, (weight, *_) in STEPS.items() for _ in range(weights.get(name, weight))]
    few = st.integers(0, 11)
    return st.lists(st.tuples(st.sampled_from(names), few, few, few, few), min_size=24, max_size=32)


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
FAMILIES = {
    "careless": careless,
    "careful": careful,
    "events": events,
    "tenants": tenants,
    "buffers": buffers,
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
        getattr(self, name)(*chosen)

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

    # -- host
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
        self.seen += [None if t is None else t.tolist() for t in self.tensors + self.pinned]


def alike(to, source):
    """Two tensors of one shape that share no memory, unless they are one."""
    if to is None or source is None or to.shape != source.shape:
        return False
    return to is source or to.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def run(program, schedule="earliest", races="warn", between=None, **options):
    """Run a program on two fresh devices. `between` is called before each step."""
    with flambeau.virtual(devices=2, profile=PROFILE, schedule=schedule, races=races, **options) as machine:
        program_run = Run()
        for step in program:
            if between is not None:
                between()
            program_run.step(*step)
        program_run.finish()
        driver = system.accelerator()
        certificate = driver.detector.certificate() if races != "off" else None
        return Outcome(program_run.seen, certificate, machine.driver.trace_hash())
