"""Backends, which move tensors between ranks: backend is the interface, flat_backend makes all collectives of a
few.

nccl_backend (GPUs, with comm_init, communicator, watchdog, rank_progress, nccl_options), thread_backend (ranks that
are threads), mpi_backend (CPU tensors between processes, with mpi_world, wait_reports, mpi_checks, process_manager);
backend_registry chooses one; monitored_barrier; processes and rank_server concern ranks that are processes.
"""
