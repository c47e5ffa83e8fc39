"""torch.distributed.elastic.multiprocessing: of it, `errors`."""
