"""Basic and advanced indexing, gather and scatter."""
