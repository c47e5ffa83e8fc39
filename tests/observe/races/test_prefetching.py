"""The fixes of loops and loaders that prefetch: they order the batch, and its computation still overlaps the next copy."""

import pytest
from fix_kit import apply, certificate_of, write

from flambeau.observe.clocks import LogicalThread
from flambeau.runtime import system

AHEAD = []  # for each batch, whether work of the side stream was not waited for when its computation was enqueued

START = """
from test_prefetching import note_ahead
from collections import deque
N = 6
host = [torch.full((1 << 12,), float(i)).pin_memory() for i in range(N)]
side = torch.cuda.Stream()
out = torch.zeros((), device="cuda")
def use(x):
    global out
    x.record_stream(torch.cuda.current_stream())
    out += x.sum()
    note_ahead()
"""

CLASS = """
class Loader:
    def __init__(self):
        self.source, self.stream, self.queue = iter(host), torch.cuda.Stream(), deque()
        self.upcoming = None
        {first}
    def fetch(self):
        batch = next(self.source, None)
        if batch is None:
            {end}
        with torch.cuda.stream(self.stream):
            {copy}
{give}
loader = Loader()
{loop}
"""

RETURNS = {
    "first": "self.upcoming = self.fetch()",
    "end": "return None",
    "copy": 'return batch.to("cuda", non_blocking=True)',
}
STORES = {
    "first": "self.fetch()",
    "end": "self.upcoming = None; return",
    "copy": 'self.upcoming = batch.to("cuda", non_blocking=True).add_(0)',
}
QUEUES = {
    "first": "self.fetch(); self.fetch()",
    "end": "return",
    "copy": 'self.queue.append(batch.to("cuda", non_blocking=True))',
}
METHOD = "while (x := loader.next()) is not None:\n    use(x)"
ITERATOR = "for x in loader:\n    use(x)"

LOADERS = {
    "apex": STORES
    | {
        "give": "    def next(self):\n        batch = self.upcoming\n        self.fetch()\n        return batch",
        "loop": METHOD,
    },
    "swap in a generator": RETURNS
    | {
        "give": "    def __iter__(self):\n        while self.upcoming is not None:\n"
        "            batch, self.upcoming = self.upcoming, self.fetch()\n            yield batch",
        "loop": ITERATOR,
    },
    "early return": STORES
    | {
        "give": '    def next(self):\n        "Return a batch."\n        if self.upcoming is None:\n            return None\n'
        "        batch = self.upcoming\n        self.fetch()\n        return batch",
        "loop": METHOD,
    },
    "queue": QUEUES
    | {
        "give": "    def __iter__(self):\n        while self.queue:\n            batch = self.queue.popleft()\n"
        "            self.fetch()\n            yield batch",
        "loop": ITERATOR,
    },
}

LOOPS = {
    "generator that yields the batch before": """
def batches():
    held = None
    for h in host:
        with torch.cuda.stream(side):
            new = h.to("cuda", non_blocking=True)
            new = new.mul(2)
        if held is not None:
            yield held
        held = new
    yield held
for x in batches():
    use(x)
""",
    "loop that calls a function": """
def preload(i):
    with torch.cuda.stream(side):
        return host[i].to("cuda", non_blocking=True)
def main():
    following = preload(0)
    for i in range(N):
        current = following
        if i + 1 < N:
            following = preload(i + 1)
        use(current)
main()
""",
    "loop with two blocks": """
with torch.cuda.stream(side):
    following = host[0].to("cuda", non_blocking=True)
for i in range(N):
    current = following
    if i + 1 < N:
        with torch.cuda.stream(side):
            following = host[i + 1].to("cuda", non_blocking=True)
    use(current)
""",
}
PREFETCHING = {name: CLASS.format(**parts) for name, parts in LOADERS.items()} | LOOPS

# These use the batch that they have just issued, so only a wait after the copy is right.
DIRECT = {
    "method": CLASS.format(
        **STORES
        | {
            "first": "pass",
            "give": "    def next(self):\n        self.fetch()\n        batch = self.upcoming\n        return batch",
            "loop": METHOD,
        }
    ),
    "queue": CLASS.format(
        **QUEUES
        | {
            "first": "pass",
            "give": "    def __iter__(self):\n        for _ in range(N):\n            self.fetch()\n"
            "            batch = self.queue.popleft()\n            yield batch",
            "loop": ITERATOR,
        }
    ),
    "generator": """
def batches():
    for h in host:
        with torch.cuda.stream(side):
            x = h.to("cuda", non_blocking=True)
        yield x
for x in batches():
    use(x)
""",
    "buffer as an argument": """
buffers = [torch.empty(1 << 12, device="cuda") for _ in range(2)]
def stage(target, i):
    with torch.cuda.stream(side):
        target.copy_(host[i], non_blocking=True)
def main():
    for i in range(2):
        stage(buffers[i], i)
        use(buffers[i])
main()
""",
    "call in the statement that uses": CLASS.format(
        **STORES
        | {
            "first": "pass",
            "give": "    def next(self):\n        self.fetch()\n        batch = self.upcoming\n"
            "        batch.record_stream(torch.cuda.current_stream())\n        return batch",
            "loop": "for i in range(N):\n    out += loader.next().sum()",
        }
    ),
}


def note_ahead():
    """Note whether the default stream has not waited for all work of the program's side streams."""
    agents = system.accelerator().detector.agents.values()
    default = next(agent for agent in agents if agent.ordinal == 0 and agent.device == 0)
    AHEAD.append(any(_is_ahead(agent, default) for agent in agents if agent.ordinal))


def _is_ahead(agent: LogicalThread, default: LogicalThread) -> bool:
    return agent.time > default.clock.get(agent, 0)


@pytest.mark.parametrize("name", PREFETCHING)
def test_a_prefetching_loops_fix_keeps_the_overlap(tmp_path, name):
    path = write(tmp_path, START + PREFETCHING[name])
    races = certificate_of(path).races
    assert races and all(race.fix.verified for race in races), races
    apply(races[:1], path)
    AHEAD.clear()
    assert certificate_of(path).race_free, path.read_text()
    assert AHEAD[:3] == [True] * 3, path.read_text()  # the last batches have nothing to overlap


@pytest.mark.parametrize("name", DIRECT)
def test_a_loop_that_uses_its_newest_batch_waits_after_the_copy(tmp_path, name):
    path = write(tmp_path, START + DIRECT[name])
    races = certificate_of(path).races
    assert races and all(race.fix.verified for race in races), races
    apply(races[:1], path)
    assert certificate_of(path).race_free, path.read_text()


def test_a_host_waits_for_the_event_of_its_buffer(tmp_path):
    text = """
    n = random.Random(0).randint(2, 4)
    host = [torch.empty(64, pin_memory=True) for _ in range(n)]
    device = [torch.empty(64, device="cuda") for _ in range(n)]
    copied = [torch.cuda.Event() for _ in range(n)]
    side = torch.cuda.Stream()
    for step in range(3 * n):
        i = step % n
        host[i].fill_(step)
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            device[i].copy_(host[i], non_blocking=True)
            copied[i].record()
        torch.cuda.current_stream().wait_event(copied[i])
        device[i].sum()
    """
    path = write(tmp_path, f"import random\n{text}".replace("\n    ", "\n"))
    race = certificate_of(path).races[0]
    assert race.fix.lines == ("copied[i].synchronize()",) and race.fix.verified, race
    apply([race], path)
    assert certificate_of(path).race_free, path.read_text()
