"""CUDA graphs: graph captures and replays, mempool is the memory that a program keeps apart and that captures allocate
from, graph_memory_check compares a graph's memory with that of its capture.
"""
