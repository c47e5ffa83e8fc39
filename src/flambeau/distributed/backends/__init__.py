"""Backends, which move tensors between ranks: backend is the interface, flat_backend makes all collectives of a
few.

nccl_backend (GPUs, with comm_init, communicator, watchdog, rank_progress, nccl_options), thread_backend (ranks that
are threads), mpi_backend (CPU tensors between processes, with mpi_world, mpi_checks, process_manager), tcp_backend
(without MPI, with tcp_steps, tcp_links, peer_connections), staged_backend (CUDA tensors through the host).
process_work and wait_reports are waits of CPU tensors; backend_registry chooses a backend; monitored_barrier;
processes and rank_server concern ranks that are processes.
"""
