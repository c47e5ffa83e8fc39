"""The statements of a certificate on pinned memory that the host may have used through views."""

from __future__ import annotations

from flambeau.core.callsite import Site, place

_MANY = 3  # number of windows listed for one view
_SHAPES = {"numpy()": "array", "__dlpack__()": "tensor", "data_ptr()": "address"}


class UnseenUses:
    """The possible unobserved uses of pinned memory on one machine. Each call site is listed once."""

    def __init__(self) -> None:
        self._views: dict[tuple[str, str], dict[str, None]] = {}  # (assumption, view) -> windows
        self._early: dict[str, None] = {}
        self._written: dict[str, dict[str, None]] = {}  # view -> call sites of reads

    def view(self, what: str, taken: Site | None, verb: str, copy: Site, until: str) -> None:
        """Record a view that lived while a copy was pending and that the host may have used; `verb` says how."""
        key = verb, view_name(what, taken)
        self._views.setdefault(key, {})[f"the copy at {place(copy)} and {until}"] = None

    def early_view(self, what: str, taken: Site | None, copy: Site, until: str) -> None:
        """Record a view that was created while a copy into its memory was pending and that the host may have used."""
        shows = f"{view_name(what, taken)} shows pinned memory that the copy at {place(copy)} may still write"
        self._early[
            f"{shows}: whether it is read before {until} cannot be seen. Take it after a wait for the copy"
        ] = None

    def write(self, what: str, taken: Site | None, operator: str, read: Site) -> None:
        """Record that a command has read memory that the host can only have written through a view."""
        self._written.setdefault(view_name(what, taken), {})[f"{operator} at {place(read)}"] = None

    def assumptions(self) -> list[str]:
        """Return the assumptions that the certificate lists."""
        return [
            *[
                f"nothing {verb} pinned memory through {view} between {_some(windows)}"
                for (verb, view), windows in self._views.items()
            ],
            *[
                f"the program has written through {view} what {_some(reads)} reads: nothing else wrote that memory"
                for view, reads in self._written.items()
            ],
        ]

    def list_violations(self, strict: bool) -> list[str]:
        """Return the statements that withhold the certificate."""
        unseen = self.assumptions() if strict else []
        return [*self._early, *[f"it cannot be seen that {text}" for text in unseen]]


def view_name(what: str, taken: Site | None) -> str:
    """Return the name of a view in reports: the call that created it, and its call site."""
    if taken is None:
        return "the library that pinned it"
    return f"the {_SHAPES[what]} of {what} at {place(taken)}"


def _some(names: dict[str, None]) -> str:
    shown = list(names)[:_MANY]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
