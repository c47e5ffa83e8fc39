"""Accesses to the places of a tensor that indices name, which are known only once a command has run."""
