"""The host's threads and memory: turn_scheduler (threads of which one runs at a time), thread_liveness, host_wait,
gc_pause, errstate (NumPy's warnings off), host_memory, array_grants (asked before NumPy allocates).
"""
