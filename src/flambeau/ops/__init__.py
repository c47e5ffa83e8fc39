"""Operator definitions: each operator is defined once, in one block."""
