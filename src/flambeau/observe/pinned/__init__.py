"""Accesses of the host to pinned memory without a driver call, through views and addresses, and their
detection.
"""
