"""Copies: copy_, to, cuda, cpu, clone, contiguous, item, pin_memory."""
