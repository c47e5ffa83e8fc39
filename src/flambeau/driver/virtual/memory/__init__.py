"""The memory of virtual GPUs.

arena holds the memory of one device; host_budget limits the host memory that all devices take;
pinned_traffic poisons pinned targets of queued copies; virtual_ipc shares device memory between processes.
"""
