"""Operators that create and arrange elements: creation, joining (cat, flip, roll, triangles), padding."""
