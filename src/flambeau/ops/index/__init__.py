"""Operators that read and write elements by index: indexing, scattering (gather, scatter, take, put), masks,
embedding, sort (sorting, searching, unique values); ufunc_at adds on the host.
"""
