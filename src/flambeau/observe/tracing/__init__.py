"""Traces of a run.

tracer, an observer, and gpu_timing record driver_calls; timeline, trace and range_recorder hold the
results; picture (SVG), chrome and trace_events (Trace Event Format) write them.
"""
