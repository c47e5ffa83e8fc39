"""Random numbers: random (one operator a distribution), dropout, gamma."""
