"""torch.distributed.elastic: only `multiprocessing.errors`. The launcher is `flambeau launch`."""
