"""Callbacks of profilers and checks: annotations (ranges and marks), launch_hooks (operators) and memory_hooks
(allocations). Each keeps its `Subscribers`.
"""
