"""The caching allocators: blocks of device memory, of page-locked memory and of the host.

Read allocator and fast_path, then what they are made of: blocks, heap, free_list, placement, cross_stream_reuse
(which free block serves a request), growth, segments, expandable_segments, resources (memory of the driver),
private_pool, deferred_frees, pending_frees (freed blocks that streams still use), reentrant_lock. event_log,
log_entries, statistics and history record what happened; allocator_config has the settings. pinned and
host_allocator are the allocators of the host's memory.
"""
