"""`KeyWaits`: the clients that wait for keys of a store, by key, so that a change costs only the waits for its key."""

from __future__ import annotations

from collections.abc import Iterable

from flambeau.distributed.stores.kv_store import Table
from flambeau.distributed.stores.store_client import StoreClient


class KeyWaits:
    """The clients of a store that wait, each with the keys that are missing."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._by_key: dict[str, dict[StoreClient, None]] = {}
        self.clients: dict[StoreClient, None] = {}

    def add(self, client: StoreClient) -> None:
        """Find the keys that a client's request still misses, and wait for them."""
        request = client.waits
        assert request is not None
        self.clients[client] = None
        client.missing = self._table.missing(request.operation, request.needs)
        if client.missing:
            for key in request.needs:
                self._by_key.setdefault(key, {})[client] = None

    def remove(self, client: StoreClient) -> None:
        """End a client's wait, if it waits."""
        request, client.waits = client.waits, None
        client.missing = set()
        if self.clients.pop(client, _NONE) is _NONE or request is None:
            return
        for key in request.needs:
            waiting = self._by_key.get(key)
            if waiting is not None and waiting.pop(client, _NONE) is None and not waiting:
                del self._by_key[key]

    def update(self, keys: Iterable[str]) -> list[StoreClient]:
        """Record that keys may have been set or removed. Returns the waiting clients whose keys all exist now."""
        found: dict[StoreClient, None] = {}
        for key in keys:
            for client in self._by_key.get(key, ()):
                assert client.waits is not None
                if self._table.ready(client.waits.operation, (key,)):
                    client.missing.discard(key)
                else:
                    client.missing.add(key)
                if not client.missing:
                    found[client] = None
        return list(found)


_NONE = object()
