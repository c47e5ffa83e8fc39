"""Operators over lists of tensors, in one launch: foreach (the family), foreach_copy, foreach_norm, optimizer."""
