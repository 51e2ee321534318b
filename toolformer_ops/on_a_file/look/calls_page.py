"""Calls in their texts as HTML: for `preview --html` and for a notebook.

Every text is escaped; there is no script. A kept call is marked at its place in the text. The others are
listed below it, with what each saves and why it is not kept.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Any

from toolformer_ops.call_syntax import has_space_before
from toolformer_ops.on_a_file.annotate.shown_calls import (
    FailedCall,
    Row,
    gain_in_words,
    most_gain,
    verdict,
    written_call,
)
from toolformer_ops.runs.reasons import title
from toolformer_ops.shown_text import visible

STYLE = """
.toolformer {font: 15px/1.5 system-ui, sans-serif; max-width: 60em; color: #1b1f24; background: #fff}
.toolformer article {border: 1px solid #d0d7de; border-radius: 6px; margin: 1em 0; padding: .6em 1em}
.toolformer h2 {font-size: 14px; margin: 0; color: #57606a}
.toolformer p.text {white-space: pre-wrap; overflow-wrap: anywhere; margin: .4em 0}
.toolformer mark {background: #b7f0c2; color: inherit; border-radius: 3px; padding: 0 .15em}
.toolformer ul {margin: .3em 0; padding-left: 1.2em; color: #57606a; font-size: 13px; overflow-wrap: anywhere}
.toolformer b.kept {color: #116329}
.toolformer table {border-collapse: collapse; font-size: 13px}
.toolformer td, .toolformer th {border: 1px solid #d0d7de; padding: .2em .5em; text-align: left !important; vertical-align: top}
.toolformer td.call {overflow-wrap: anywhere; max-width: 40em}
@media (prefers-color-scheme: dark) {
.toolformer {color: #e6edf3; background: #0d1117}
.toolformer mark {background: #1f5c2e}
.toolformer b.kept {color: #56d364}
}
"""


def escaped(text: object) -> str:
    """Untrusted text as HTML: it has no tags, and all of it is visible."""
    return html.escape(visible(str(text)))


def marked_text(text: str, rows: Sequence[Row]) -> str:
    """The text with the best kept call of each place marked in it."""
    best: dict[int, Row] = {}
    for row in rows:
        at = row["position_char"]
        if row["kept"] and (at not in best or most_gain(row) > most_gain(best[at])):
            best[at] = row
    pieces: list[str] = []
    end = 0
    for at, row in sorted(best.items()):
        pieces.append(escaped(text[end:at]))
        end = at
        before, after = (" ", "") if has_space_before(text, at) else ("", " ")
        pieces.append(
            f'{before}<mark title="{escaped(gain_in_words(row))}">{escaped(written_call(row))}</mark>{after}'
        )
    pieces.append(escaped(text[end:]))
    return "".join(pieces)


def article(
    name: str,
    text: str,
    rows: Sequence[Row],
    failed: Iterable[FailedCall],
    why_nothing: Iterable[tuple[str, str]],
) -> str:
    """A text with its kept calls, then a line for each call, and for each tool without one the reason."""
    ranked = sorted(rows, key=lambda row: not row["kept"])
    lines = []
    for row in ranked:
        style = "kept" if row["kept"] else "other"
        lines.append(f'<li><b class="{style}">{escaped(written_call(row))}</b> {escaped(verdict(row))}</li>')
    for call in failed:
        lines.append(f"<li>[{escaped(call.call)}] no result; {escaped(call.why)}</li>")
    lines += [f"<li>{escaped(tool)}: {escaped(title(reason))}</li>" for tool, reason in why_nothing]
    return (
        f'<article><h2>{escaped(name)}</h2><p class="text">{marked_text(text, rows)}</p>'
        f"<ul>{''.join(lines)}</ul></article>"
    )


def page(heading: str, lines: Iterable[str], articles: Iterable[str]) -> str:
    """A page of its own, which asks for nothing from elsewhere."""
    listed = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">"
        f'<title>{escaped(heading)}</title><style>{STYLE}</style></head><body class="toolformer">'
        f"<h1>{escaped(heading)}</h1><ul>{listed}</ul>{''.join(articles)}</body></html>\n"
    )


def table(rows: Sequence[Row], total: int) -> str:
    """Calls as a table of HTML with its style, each marked in the text around it.

    `total` is how many there are.
    """
    cells = "".join(_table_row(row) for row in rows)
    left = f"<p>the first {len(rows):,} of {total:,}</p>" if total > len(rows) else ""
    head = "".join(f"<th>{name}</th>" for name in ("text", "call in its text", ""))
    return f'<style>{STYLE}</style><div class="toolformer"><table><tr>{head}</tr>{cells}</table>{left}</div>'


def _table_row(row: Row) -> str:
    before, after = str(row["before"]), str(row["after"])
    around: dict[str, Any] = {**row, "kept": True, "gain": 0.0, "position_char": len(before)}
    written = marked_text(before + after, [around]) if row["kept"] else None
    if written is None:
        written = f"{escaped(before)} <i>{escaped(written_call(row))}</i> {escaped(after)}"
    name = escaped(row.get("id") or row["document_id"])
    return f'<tr><td>{name}</td><td class="call">{written}</td><td>{escaped(verdict(row))}</td></tr>'
