"""Launch of ranks: agent (one node), workers (its processes), stalls (ranks that wait), rank_watch and file_watch (the
same checks without a launcher), cluster_environment (Slurm, MPI), launch_options.
"""
