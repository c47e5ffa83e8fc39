"""torch._dynamo._trace_wrapped_higher_order_op: of this module of the compiler, what libraries enter."""

from __future__ import annotations

from types import TracebackType

from flambeau.core.public_names import explain_absent_names

__all__ = ["TransformGetItemToIndex"]

explain_absent_names(globals(), "torch._dynamo._trace_wrapped_higher_order_op")


class TransformGetItemToIndex:
    """A context in which PyTorch indexes by tensors of no dimensions without reading them, for its compiler.

    Indexing by such tensors is the same with and without it where nothing is compiled, so it changes nothing here.
    """

    def __enter__(self) -> TransformGetItemToIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the context."""
