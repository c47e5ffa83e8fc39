"""Random programs of pinned tensors, NumPy views, copies both ways and waits, against an oracle that knows what is ordered.

The oracle keeps, for each copy, the set of copies that come before it, and of the host what it has waited for. It sees what
the host does through views, which the race detector does not.
"""

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flambeau
import flambeau as torch
from flambeau.runtime import system

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
BUFFERS, TENSORS, STREAMS, EVENTS, N = 2, 2, 3, 2, 8
SCHEDULES = ["earliest", "random:0", "random:1", "adversarial:0"]
P, X, S, E = (st.integers(0, n - 1) for n in (BUFFERS, TENSORS, STREAMS, EVENTS))
HOW = st.sampled_from(["plain", "plain", "alias", "half", "part", "blocking"])
STEPS = st.one_of(
    *[st.tuples(st.just("upload"), P, X, S, HOW)] * 3,
    *[st.tuples(st.just("download"), P, X, S, HOW)] * 3,
    *[
        st.tuples(st.just(what), P)
        for what in ("view", "drop", "glance", "read", "write", "store", "address")
    ],
    *[st.tuples(st.just(what), P) for what in ("peek", "scribble", "scribble", "scribble")],
    *[st.tuples(st.just(what), S, E) for what in ("record", "record", "wait")],
    *[st.tuples(st.just("sync_event"), E), st.tuples(st.just("sync_stream"), S), st.tuples(st.just("sync"))]
    * 3,
)
PROGRAMS = st.tuples(
    st.sampled_from([[], [("view", 0)], [("view", 0), ("view", 1)]]), st.lists(STEPS, min_size=3, max_size=14)
)


class Oracle:
    """What comes before what, as bits of a number for each copy."""

    def __init__(self):
        self.before = []  # of each copy
        self.uses = []  # of each copy: resource -> whether it writes there
        self.streams, self.events, self.host = [0] * STREAMS, [0] * EVENTS, 0
        self.racy = False
        self.unseen_write = False  # through a view, while a copy may use the memory
        self.early_views = set()  # buffers
        self.presumed = False  # a view was taken and dropped while a copy into the memory was pending
        self.leans = False
        self.views = [0] * BUFFERS  # how many live; addresses live for ever

    def pending(self, resource, writes_only=False):
        return [
            i
            for i, uses in enumerate(self.uses)
            if resource in uses and not self.host >> i & 1 and (uses[resource] or not writes_only)
        ]

    def copy(self, stream, uses, blocking):
        before = self.streams[stream] | self.host
        for i, other in enumerate(self.uses):
            for resource in uses.keys() & other.keys():
                if (uses[resource] or other[resource]) and not before >> i & 1:
                    self.racy = True
        self.before.append(before)
        self.uses.append(uses)
        self.streams[stream] = before | 1 << len(self.before) - 1
        if blocking:
            self.host |= self.streams[stream]
        buffer = next(resource for resource in uses if isinstance(resource, int))
        if self.views[buffer] and not (blocking and threading.active_count() == 1):
            self.leans = True

    def access(self, buffer, write):
        found = self.pending(buffer, writes_only=not write)
        self.racy = self.racy or bool(found)
        return bool(found)


class Run:
    """One program on virtual GPUs, beside NumPy, which does each step at once."""

    def __init__(self, steps):
        self.oracle = Oracle()
        self.seen, self.expected = [], []
        self.number = 1.0
        self.host = [torch.zeros(N).pin_memory() for _ in range(BUFFERS)]
        self.device = [torch.full((N,), -1.0 - i, device="cuda") for i in range(TENSORS)]
        torch.cuda.synchronize()
        self.model = [np.zeros(N, np.float32) for _ in range(BUFFERS)]
        self.on_device = [np.full(N, -1.0 - i, np.float32) for i in range(TENSORS)]
        self.streams = [torch.cuda.current_stream(), *[torch.cuda.Stream() for _ in range(STREAMS - 1)]]
        self.events = [torch.cuda.Event() for _ in range(EVENTS)]
        self.views, self.taken_during = [None] * BUFFERS, [[]] * BUFFERS
        for what, *arguments in steps:
            getattr(self, what)(*arguments)
        self.oracle.host = -1
        torch.cuda.synchronize()
        self.see(torch.stack(self.device).cpu().numpy(), np.stack(self.on_device))
        self.see(np.stack([h.clone().numpy() for h in self.host]), np.stack(self.model))
        self.certificate = system.accelerator().detector.certificate()

    def see(self, got, expected):
        self.seen.append(np.array(got))
        self.expected.append(np.array(expected))

    def next(self):
        self.number += 1
        return self.number

    # -- copies ---------------------------------------------------------------------------------------------
    def _both(self, p, x, how):
        """The two tensors of a copy, and the same parts of the model."""
        host, device, model, theirs = self.host[p], self.device[x], self.model[p], self.on_device[x]
        if how == "alias":
            host = torch.from_numpy(host.numpy())
        if how == "part":
            return host[2:5], device[:3], model[2:5], theirs[:3]
        return host, device, model, theirs

    def upload(self, p, x, s, how):
        host, device, model, theirs = self._both(p, x, how)
        blocking = how == "blocking"
        with torch.cuda.stream(self.streams[s]):
            if how == "half":
                device.copy_(host.to("cuda", torch.float16, non_blocking=True))
            else:
                device.copy_(host, non_blocking=not blocking)
        theirs[...] = model
        self._queued(p, x, s, how, False, blocking)
        del host

    def download(self, p, x, s, how):
        host, device, model, theirs = self._both(p, x, how)
        blocking = how == "blocking"
        with torch.cuda.stream(self.streams[s]):
            host.copy_(device.half() if how == "half" else device, non_blocking=not blocking)
        model[...] = theirs
        self._queued(p, x, s, how, True, blocking)
        del host

    def _queued(self, p, x, s, how, writes, blocking):
        if how == "alias":  # its array lives as long as the tensor, which the copy outlives
            self._viewed(p)
            self.oracle.views[p] += 1
        self.oracle.copy(s, {p: writes, f"x{x}": not writes}, blocking)
        if how == "alias":
            self.oracle.views[p] -= 1

    # -- what the host does ---------------------------------------------------------------------------------
    def _viewed(self, p):
        if self.oracle.pending(p):
            self.oracle.leans = True
        if self.oracle.pending(p, writes_only=True):
            self.oracle.early_views.add(p)

    def view(self, p):
        self._viewed(p)
        taken_during = self.oracle.pending(p, writes_only=True)
        view = self.host[p].numpy()
        self.drop(p)
        self.views[p], self.taken_during[p] = view, taken_during
        self.oracle.views[p] += 1

    def drop(self, p):
        if self.views[p] is not None:
            self.oracle.views[p] -= 1
            pending = self.oracle.pending(p, writes_only=True)
            self.oracle.presumed |= any(copy in pending for copy in self.taken_during[p])
        self.views[p] = None

    def address(self, p):
        if self.oracle.pending(p):
            self.oracle.leans = True
        self.host[p].data_ptr()
        self.oracle.views[p] += 1

    def glance(self, p):
        """A view for one read."""
        self._viewed(p)
        self.oracle.access(p, False)
        self.see(self.host[p].numpy(), self.model[p])

    def peek(self, p):
        if self.views[p] is not None:
            self.oracle.access(p, False)
            self.see(self.views[p], self.model[p])

    def scribble(self, p):
        if self.views[p] is not None:
            self.oracle.unseen_write |= self.oracle.access(p, True)
            self.views[p][...] = self.model[p][...] = self.next()

    def read(self, p):
        self.oracle.access(p, False)
        self.see(self.host[p].tolist(), self.model[p])

    def write(self, p):
        self.oracle.access(p, True)
        number = self.model[p][...] = self.next()
        self.host[p].fill_(number)

    def store(self, p):
        """An operator of the host that reads and writes."""
        self.oracle.access(p, True)
        self.host[p].add_(1)
        self.model[p] += 1

    # -- waits ----------------------------------------------------------------------------------------------
    def record(self, s, e):
        self.events[e].record(self.streams[s])
        self.oracle.events[e] = self.oracle.streams[s] | self.oracle.host

    def wait(self, s, e):
        self.streams[s].wait_event(self.events[e])
        self.oracle.streams[s] |= self.oracle.events[e]

    def sync_event(self, e):
        self.events[e].synchronize()
        self.oracle.host |= self.oracle.events[e]

    def sync_stream(self, s):
        self.streams[s].synchronize()
        self.oracle.host |= self.oracle.streams[s]

    def sync(self):
        torch.cuda.synchronize()
        for mask in self.oracle.streams:
            self.oracle.host |= mask


def outcome(steps, schedule="earliest", strict=False):
    with flambeau.virtual(devices=1, schedule=schedule, races="warn", strict=strict):
        return Run(steps)


def through_views(texts):
    return [text for text in texts if "pinned memory" in text]


def check(steps):
    for schedule in SCHEDULES:
        run = outcome(steps, schedule)
        oracle, certificate = run.oracle, run.certificate
        named = through_views(certificate.assumptions) + through_views(certificate.violated)
        if oracle.racy:
            assert certificate.races or named, f"{schedule}: a racy program is certified:\n{certificate}"
            assert not oracle.unseen_write or certificate.races, (
                f"{schedule}: an unseen write is no race:\n{certificate}"
            )
        else:
            accused = certificate.races and not oracle.presumed
            assert not accused, f"{schedule}: a clean program is accused:\n{certificate}"
            assert bool(certificate.violated) <= bool(oracle.early_views), (
                f"{schedule}: withheld:\n{certificate}"
            )
            assert certificate.races or bool(named) == oracle.leans, (
                f"{schedule}: {'not' if oracle.leans else ''} named:\n{certificate}"
            )
            for seen, expected in zip(run.seen, run.expected, strict=True):
                assert (seen == expected).all(), f"{schedule}: {seen}, not {expected}"
    strict = outcome(steps, strict=True).certificate
    assert not strict.race_free or not (oracle.racy or named), f"strict:\n{strict}"


@settings(max_examples=4000 if EXHAUSTIVE else 50)
@given(PROGRAMS)
def test_no_racy_program_is_certified_and_no_clean_one_accused(program):
    views, steps = program
    check(views + steps)


@pytest.mark.parametrize(
    "steps",
    [
        [("view", 0), ("upload", 0, 0, 0, "plain"), ("scribble", 0)],
        [("download", 0, 0, 0, "plain"), ("view", 0), ("peek", 0)],
        [("view", 0), ("download", 0, 0, 0, "plain"), ("scribble", 0), ("sync",)],
        [("view", 0), ("upload", 0, 0, 1, "plain"), ("download", 0, 0, 1, "plain"), ("sync",), ("peek", 0)],
    ],
)
def test_programs_of_note(steps):
    check(steps)
