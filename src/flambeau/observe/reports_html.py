"""Races and certificates as HTML for notebooks. Colours of text and background are the notebook's own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from flambeau.core.callsite import place, source
from flambeau.observe.reports import Certificate, Fix, Race, RaceAccess

_RED, _GREEN, _YELLOW = "#e03131", "#2f9e44", "#e67700"
_MOST = 20  # races that are shown in full


def certificate_html(certificate: Certificate) -> str:
    """Return the verdict with its races, or with its assumptions."""
    if certificate.races:
        return races_html(certificate.races)
    if certificate.violated:
        verdict = "No race in this run, but not certified for every schedule:"
        return _block(_YELLOW, [_bold(verdict, _YELLOW), _list(certificate.violated)])
    verdict = "Race-free under every schedule, given that:"
    return _block(_GREEN, [_bold(verdict, _GREEN), _list(certificate.assumptions)])


def races_html(races: list[Race]) -> str:
    """Return a list of races with their number."""
    title = f"{len(races):,} race{'' if len(races) == 1 else 's'} found"
    rest = len(races) - _MOST
    more = [f"<div>and {rest:,} more</div>"] if rest > 0 else []
    return _block(_RED, [_bold(title, _RED), *[race_html(race) for race in races[:_MOST]], *more])


def race_html(race: Race) -> str:
    """Return one race: both call sites, the call that orders them, and where memory and streams were created."""
    begin, end = race.range
    size = f"{end - begin:,} bytes of {race.device}"
    what = (
        f"{size} were freed and allocated again while a stream may still use them"
        if race.reused
        else f"Nothing orders these two uses of {size}"
    )
    often = f" ({race.count:,} times)" if race.count > 1 else ""
    rows = [
        ("first", _side(race.first)),
        ("second", _side(race.second)),
        ("fix", _fix(race.fix)),
        ("note", escape(race.note.removeprefix("note:").strip())),
        ("created", escape(_describe_creation(race))),
    ]
    cells = "".join([_row(label, html) for label, html in rows if html])
    return f'<div style="margin:6px 0">{escape(what + often)}{table_html(cells)}</div>'


def table_html(rows: str) -> str:
    """Return a table of rows that `row_html` returned."""
    return f'<table style="border:none;margin:2px 0 0 12px;text-align:left">{rows}</table>'


def row_html(label: str, text: str) -> str:
    """Return a row: a label and plain text."""
    return _row(label, escape(text))


def _row(label: str, html: str) -> str:
    style = "border:none;text-align:left;vertical-align:top;padding:1px 12px 1px 0;background:none"
    return (
        f'<tr style="background:none"><td style="{style};opacity:0.7">{escape(label)}</td>'
        f'<td style="{style}">{html}</td></tr>'
    )


def _side(side: RaceAccess) -> str:
    launched = f" (launched at {place(side.launched)})" if side.launched else ""
    text = f"{side.where}{launched}: {side.name or side.operator} on {side.stream or 'the host'} {side.kind} them"
    code = source(side.site)
    return escape(text) + (f"<br><code>{escape(code)}</code>" if code else "")


def _fix(fix: Fix) -> str:
    """Return the place and the lines of a fix, ready to be pasted."""
    where = f'<span style="color:{_GREEN}">{escape(fix.where)}{":" if fix.lines else ""}</span>'
    code = [f'<code style="white-space:pre">{escape(line)}</code>' for line in fix.lines]
    return "<br>".join([where, *code, *([escape(fix.hint)] if fix.hint else [])])


def _describe_creation(race: Race) -> str:
    parts = [f"the memory at {place(race.allocated)}"] if race.allocated else []
    parts += [f"freed at {place(race.freed)}"] if race.freed else []
    streams = {side.stream: side.stream_site for side in (race.first, race.second)}
    parts += [f"{stream} at {place(site)}" for stream, site in streams.items() if site]
    return ", ".join(parts)


def _block(colour: str, parts: Iterable[str]) -> str:
    return f'<div style="border-left:3px solid {colour};padding:2px 0 2px 10px">{"".join(parts)}</div>'


def _bold(text: str, colour: str) -> str:
    return f'<div style="font-weight:600;color:{colour}">{escape(text)}</div>'


def _list(texts: Iterable[str]) -> str:
    items = "".join([f"<li>{escape(text)}</li>" for text in texts])
    return f'<ul style="margin:2px 0 2px 18px;padding:0">{items}</ul>'
