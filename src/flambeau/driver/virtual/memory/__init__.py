"""Memory of virtual GPUs: arena (one device's), host_budget, pinned_traffic, virtual_ipc."""
