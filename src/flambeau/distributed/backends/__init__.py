"""Backends, which move tensors between ranks.

backend is the interface; flat_backend is the base of backends that express all collectives by a few. nccl_backend
serves GPUs (with comm_init, communicator, watchdog, rank_progress, nccl_options), thread_backend ranks that are
threads, mpi_backend CPU tensors of separate processes (with mpi_world, mpi_checks, process_manager), tcp_backend the
same without MPI (with tcp_steps, tcp_links, peer_connections), staged_backend CUDA tensors through the host.
process_work and wait_reports implement waits for CPU tensors; backend_registry chooses a backend; processes and
rank_server serve ranks that are processes.
"""
