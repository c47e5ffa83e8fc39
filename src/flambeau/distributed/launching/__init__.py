"""Launch of ranks: agent (one node), workers (its processes), stalls (ranks that wait), cluster_environment
(Slurm, MPI), launch_options.
"""
