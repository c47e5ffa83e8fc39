"""Collective operations: collectives (under NCCL's rules), simulated_peers, and coordinator_client for other
processes.
"""
