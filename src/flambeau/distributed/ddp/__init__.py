"""Parts of DistributedDataParallel: reducer over buckets, replicas, comm_hooks, reducer_errors."""
