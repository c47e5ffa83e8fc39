"""Factories, `*_like`, `new_*`."""
