"""What the host may do to pinned memory without a call of the driver: views, addresses, and how they are noticed."""
