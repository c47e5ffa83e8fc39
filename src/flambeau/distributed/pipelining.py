"""torch.distributed.pipelining: importable, so that programs which only mention it run. Every use raises."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
_HERE = "torch.distributed.pipelining"
_ADVICE = "Send activations between the stages by torch.distributed.send and recv."

Pipe = absent_class(_HERE, "Pipe", _ADVICE)
PipelineStage = absent_class(_HERE, "PipelineStage", _ADVICE)
Schedule1F1B = absent_class(_HERE, "Schedule1F1B", _ADVICE)
ScheduleDualPipeV = absent_class(_HERE, "ScheduleDualPipeV", _ADVICE)
ScheduleGPipe = absent_class(_HERE, "ScheduleGPipe", _ADVICE)
ScheduleInterleaved1F1B = absent_class(_HERE, "ScheduleInterleaved1F1B", _ADVICE)
ScheduleInterleavedZeroBubble = absent_class(_HERE, "ScheduleInterleavedZeroBubble", _ADVICE)
ScheduleLoopedBFS = absent_class(_HERE, "ScheduleLoopedBFS", _ADVICE)
ScheduleZBVZeroBubble = absent_class(_HERE, "ScheduleZBVZeroBubble", _ADVICE)
SplitPoint = absent_class(_HERE, "SplitPoint", _ADVICE)
build_stage = absent_function(_HERE, "build_stage", _ADVICE)
pipe_split = absent_function(_HERE, "pipe_split", _ADVICE)
pipeline = absent_function(_HERE, "pipeline", _ADVICE)

explain_absent_names(globals(), _HERE)
