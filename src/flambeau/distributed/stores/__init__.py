"""Key-value stores: store (the interface, HashStore, PrefixStore), file_store, tcp_store over store_server with
store_client and key_waits, kv_store (the table that they share); coordinator is the server of collectives of virtual
GPUs, which store_server serves too.
"""
