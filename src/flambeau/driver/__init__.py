"""The driver protocol and the drivers that implement it: `host` (CPU), `virtual` and `cuda`."""
