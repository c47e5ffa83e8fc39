"""Builders of kernels that move elements: indexing, joining, compaction, sorting over radix, and what sorts:
searching, ranks, unique, permutation; histogram counts into bins.
"""
