"""Random creation."""
