"""Drivers that hold a driver: race detector, timeline, fault injection."""
