"""torch.distributed.elastic.multiprocessing: only `errors`."""
