"""Sorting, searching, unique."""
