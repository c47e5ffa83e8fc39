"""Reports about memory: snapshot and traces (PyTorch's formats), memory_metadata and summary, the
out-of-memory error (oom_message, oom_advice), and replay, which repeats a recorded trace under other settings.
"""
