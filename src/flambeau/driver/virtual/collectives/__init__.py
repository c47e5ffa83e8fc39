"""Collectives of virtual GPUs under NCCL's rules.

collectives pairs contributions; coordinator_client connects ranks that are processes; simulated_peers
stands for the other ranks of a simulated cluster.
"""
