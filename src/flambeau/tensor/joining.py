"""cat, stack, split and their kin."""
