"""Simulated time.

scheduler defines commands, streams and engines; schedule_policy chooses the next command; command_graph
finds other legal orders of a run; deadlock reports deadlocks; driver_lock and interrupts protect a running
command.
"""
