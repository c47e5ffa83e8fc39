"""Simulated time: scheduler (commands, streams, engines), schedule_policy (which command runs next), command_graph
(other legal orders of a run), deadlock, rank_clocks, driver_lock, interrupts.
"""
