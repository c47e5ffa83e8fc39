"""Traces: tracer (a driver that notes calls) and gpu_timing write driver_calls; timeline, trace and range_recorder
hold what ran; picture (SVG), chrome and trace_events (Trace Event Format) are their forms.
"""
