"""Time to dump, show and replay a memory history of a million events.

    python bench/history.py

Two programs: "slots", in which a random one of 256 slots is replaced by a block of a random size, 64 B to 16 MiB;
"training", the requests of a small transformer's training steps, again and again. Both ask from 40 lines, 1 to 12
frames deep, and are recorded with stacks and without, each in a separate process. Seconds of the processor, the
shortest of three and the first; "more": by how much the process grows at most meanwhile. "page" makes the HTML of
`flambeau memory`, "replay" plays the trace on a device without limits. Where Chromium is there, milliseconds: until the
script of the page is done, and to draw the whole trace, and a thousand events of it, anew.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from allocator import MIB, NullDriver, slots, training

from flambeau.cli import memory
from flambeau.cli.output import memory_page
from flambeau.core.device import device
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory_reports.replay import events_of, play
from flambeau.runtime.memory_reports.snapshot import dump, snapshot

EVENTS = 1_000_000
Step = tuple[int, int | None]  # a key and the bytes that it asks for; None: it frees them


class Driver(NullDriver):
    def stream_native(self, handle: int) -> int:
        return 0


def callers(call: Callable[[int], Any]) -> Iterator[Callable[[int], Any]]:
    """Return an endless iterator of functions that call `call` from 40 lines, below up to 11 other frames."""
    found = []
    for line in range(40):
        inner = call
        for _ in range(1 + line % 12):
            inner = eval("\n" * line + "lambda nbytes: inner(nbytes)", {"inner": inner})
        found.append(inner)
    return cycle(found)


def slot_steps() -> Iterator[Step]:
    yield from ((slot, 512) for slot in range(256))
    for slot, nbytes in slots(64, 16 * MIB, EVENTS // 3):
        yield slot, None
        yield slot, nbytes


def training_steps() -> Iterator[Step]:
    events = training("GPT")
    while True:
        held = set()
        for event in events:
            (held.add if event.action == "alloc" else held.remove)(event.key)
            yield event.key, event.nbytes if event.action == "alloc" else None
        yield from ((key, None) for key in held)


def recorded(steps: Iterator[Step], context: str | None) -> tuple[CachingAllocator, dict[int, Any]]:
    """Return an allocator with a history of EVENTS events, and the blocks that are still allocated."""
    where = Context(device("cuda", 0), 0, Driver(), 0)  # type: ignore[arg-type]
    allocator, stream = CachingAllocator(where), SimpleNamespace(handle=1, context=where)
    allocator.record(Recording(context=context, max_entries=EVENTS, clock=time.perf_counter_ns))
    asking = callers(lambda nbytes: allocator.allocate(nbytes, stream))
    held: dict[int, Any] = {}
    left = EVENTS
    while left > 0:
        key, nbytes = next(steps)
        if nbytes is None:
            allocator.free(held.pop(key))
            left -= 2
        else:
            held[key] = next(asking)(nbytes)
            left -= 1
    return allocator, held


def timed(name: str, call: Callable[[], Any], rounds: int = 3) -> Any:
    took, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        found = None
        start = time.process_time()
        found = call()
        took.append(time.process_time() - start)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"    {name:9} {min(took):6.2f} s, at first {took[0]:5.2f}, {more / 1024:5.0f} MB more")
    return found


def in_chromium(page: Path) -> str:
    """Milliseconds: until the page's script is done, to draw all, to draw a thousand events."""
    script = """<script>
      const draws = (...events) => { const start = performance.now(); look(...events); draw();
        return performance.now() - start; };
      const drawn = (...events) => Math.min(...[1, 2, 3, 4, 5].map(() => draws(...events)));
      const half = device.events / 2, opened = performance.now();
      document.title = [opened, drawn(0, device.events), drawn(half, half + 1000)].map(ms => ms.toFixed(0)).join();
      $("data").remove();
    </script></body>"""
    page.write_text(page.read_text().replace("</body>", script))
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,900",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, f"file://{page}"], capture_output=True, text=True, timeout=300, check=True
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title
    opened, whole, part = title[1].split(",")
    return f"opens in {opened} ms, draws all in {whole} ms, a thousand events in {part} ms"


PROGRAMS = {"slots": slot_steps, "training": training_steps}


def measure(name: str, context: str | None, folder: Path) -> None:
    allocator, held = recorded(PROGRAMS[name](), context)
    path, page = folder / "snapshot.pickle", folder / "report.html"

    def dumped() -> None:
        with path.open("wb") as file:
            file.writelines(dump([allocator]))

    timed("dump", dumped)
    timed("snapshot", lambda: snapshot([allocator]))
    assert held
    found = timed("load", lambda: memory.load(path))
    page.write_text(timed("page", lambda: memory_page.page(found, path.name)))
    (trace,), segments = found["device_traces"], found["segments"]
    timed("replay", lambda: play(events_of(trace, segments), 1 << 62), rounds=1)
    print(f"    pickle {path.stat().st_size / 1e6:.0f} MB, page {page.stat().st_size / 1e6:.1f} MB")
    if shutil.which("chromium"):
        print(f"    {in_chromium(page)}")


def main() -> None:
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as folder:
            measure(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None, Path(folder))
        return
    for name in PROGRAMS:
        for context in ("all", None):
            print(f"{name}, {'stacks of all' if context else 'no stacks'}", flush=True)
            subprocess.run([sys.executable, __file__, name, *filter(None, [context])], check=True)


if __name__ == "__main__":
    main()
