"""torch.distributed.elastic: of it, `multiprocessing.errors`. The launcher is `flambeau launch`."""
