"""A loader that copies the next batch to the GPU, on a separate stream, while the current one is processed."""

from collections.abc import Iterable, Iterator

import torch


class Prefetcher:
    """Iterates over batches, each on the current device; the copy of the next one is under way meanwhile."""

    def __init__(self, batches: Iterable[torch.Tensor]) -> None:
        self._batches = iter(batches)
        self._stream = torch.cuda.Stream()
        self._next = self._start()

    def _start(self) -> torch.Tensor | None:
        batch = next(self._batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self._stream):
            return batch.pin_memory().to("cuda", non_blocking=True)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self._next is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            batch = self._next
            batch.record_stream(current)  # its memory belongs to the copy stream, and is used on this one
            self._next = self._start()
            yield batch
