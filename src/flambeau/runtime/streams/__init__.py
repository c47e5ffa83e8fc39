"""Order between devices and host: stream, event, guards (select a stream or a device for a block of code).

stream_order is the happens-before relation of a device's streams; wait_reason: why the runtime itself makes a
stream wait; sync_debug reports calls that block the host.
"""
