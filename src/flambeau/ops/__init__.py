"""Operator records: each operator defined once, in one block."""
