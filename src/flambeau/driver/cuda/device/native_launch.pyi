from collections.abc import Callable, Sequence
from typing import Any

class KernelLauncher:
    """The launch function of a kernel: `launch(addresses, scalars, stream)`."""

    def __new__(
        cls,
        launch: int,
        function: int,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        params: bytes,
        offsets: tuple[int, ...],
        addresses: int,
        scalars_at: int,
        scalars: bytes,
        several: bool,
        streams: dict[int, Any],
        find: Callable[[int], Any],
        thread: Any,
        enter: Callable[[Any], None],
        error: Callable[[int], Exception],
        late: Callable[[Any, int], Sequence[tuple[int, int]]] | None,
    ) -> KernelLauncher: ...
    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], stream: int, /) -> None: ...
    def of_shape(
        self,
        grid: tuple[int, int, int],
        tail: bytes,
        late: Callable[[Any, int], Sequence[tuple[int, int]]] | None,
        /,
    ) -> KernelLauncher:
        """Return the launch function of another shape of the kernel."""
