"""Blocks of suspended generators: the stream that one selects stays current in the code that uses the generator."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from types import GeneratorType

from flambeau.core.callsite import line_place
from flambeau.observe.clocks import LogicalThread
from flambeau.observe.reporting.program_names import has_value, stream_of
from flambeau.observe.reporting.scopes import FrameScope, is_own_file, live_scopes
from flambeau.observe.reporting.spots import is_simple


def selection_note(agent: LogicalThread) -> str:
    """Return a note if a suspended generator's block, and no running one, selects a stream; "" otherwise."""
    if agent.ordinal == 0 or any(_selections(scope, agent) for scope in live_scopes()):
        return ""
    for scope in _generator_scopes():
        for line in _selections(scope, agent):
            path, at = scope.site[0].co_filename, scope.spot.line if scope.spot is not None else 0
            return (
                f"note:   {agent} is current here because of the block of {line_place(path, line)}: its generator is "
                f"suspended in it at {line_place(path, at)}. Move the yield out of the block."
            )
    return ""


def _selections(scope: FrameScope, agent: LogicalThread) -> list[int]:
    """Return the lines of the blocks around a scope's position that select a stream."""
    if scope.spot is None:
        return []
    wanted = stream_of(agent)
    return [
        block.lineno
        for block, stream in scope.spot.selections()
        if is_simple(stream) and has_value(scope, stream, wanted)
    ]


def _generator_scopes() -> Iterator[FrameScope]:
    """Yield the positions of the program's suspended generators."""
    for found in gc.get_objects():
        if type(found) is GeneratorType and inspect.getgeneratorstate(found) == inspect.GEN_SUSPENDED:
            frame = found.gi_frame
            if frame is not None and is_own_file(frame.f_code.co_filename):
                yield FrameScope(frame, (frame.f_code, frame.f_lasti))
