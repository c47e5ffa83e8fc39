"""Data between processes: codec (plain values as bytes), handshake of a connection, pickle_reader (pickles of
plain data), exception_wrapper; shared_memory, named_memory and shared_slots are memory that several processes
map.
"""
