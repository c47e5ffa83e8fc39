"""Parts of DistributedDataParallel: reducer over buckets, used_parameters, replicas, comm_hooks, reducer_errors."""
