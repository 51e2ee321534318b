"""Templates (Jinja2, every value escaped), and how numbers, texts and links are written.

What a document or a model wrote is hostile by assumption: it is escaped, and characters that do not show, or
that turn the direction of a line, are written out. Nothing is ever marked as safe. Scripts and styles are
files of ours; the content security policy allows no others, and nothing inline.
"""

import datetime
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from toolformer_ops.runs.durations import MISSING, duration
from toolformer_ops.runs.placebo_rates import kept_by_chance
from toolformer_ops.runs.reasons import title
from toolformer_ops.shown_text import gain_in_figures, in_unit_of_rule, visible

TEMPLATES = Path(__file__).parent / "templates"
ASSETS_FOLDER = Path(__file__).parent / "assets"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript"}
_CONTENTS = {path.name: path.read_bytes() for path in sorted(ASSETS_FOLDER.iterdir())}
ASSETS: Mapping[str, tuple[str, bytes]] = MappingProxyType(
    {name: (MEDIA_TYPES[Path(name).suffix], content) for name, content in _CONTENTS.items()}
)
"""Media type and content of every file that a page loads."""
ASSETS_VERSION = hashlib.sha256(b"".join(_CONTENTS.values())).hexdigest()[:12]
"""Part of their addresses, so that browsers may keep them."""
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "private, no-cache",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
)


@functools.cache
def environment() -> Environment:
    """The templates with their filters."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else "" if value is None else value,
    )
    templates.filters |= {
        "count": count, "nats": nats,
        "gained": gained, "needed": needed, "percent": percent, "seconds": duration, "moment": moment, "words": title,
        "json": as_json,
        "by_chance": kept_by_chance,
    }  # fmt: skip
    templates.globals |= {
        "link": link,
        "airflow_run": airflow_run,
        "airflow_dag": airflow_dag,
        "assets": ASSETS_VERSION,
    }
    return templates


def response(template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """A page."""
    content = environment().get_template(template).render(values)
    # Half surrogates, which a text can hold and UTF-8 cannot write, are written out by `visible`.
    return Response(
        content.encode("utf-8", "replace"), status, HEADERS, media_type="text/html; charset=utf-8"
    )


def count(number: float | None) -> str:
    """`1,234`."""
    return MISSING if number is None else f"{number:,.0f}"


def nats(number: float | None) -> str:
    """`1.25`, with a real minus sign."""
    return MISSING if number is None else f"{number:.2f}".replace("-", "\u2212")


def gained(call: Any) -> str:
    """What a call gains by its keep rule: `1.21 nats`, `0.21 → 0.64`, or the most that it can gain, `≤ 1.20 times`."""
    values = call if isinstance(call, Mapping) else call._asdict()
    if values.get("gain") is not None:
        figures = gain_in_figures(values["gain"], values.get("probability_with"), arrow="→")
        return figures.replace("-", "\u2212")
    if values.get("gain_bound") is None:
        return MISSING
    bound = in_unit_of_rule(
        values["gain_bound"], values["keep_rule"] == "probability", values["keep_threshold"]
    )
    return f"≤ {bound}".replace("-", "\u2212")


def needed(keeping: Any) -> str:
    """What a keep threshold asks of a call, of a row with it and the keep rule: `0.50 nats`, or `1.25 times`."""
    values = keeping if isinstance(keeping, Mapping) else vars(keeping)
    return in_unit_of_rule(values["keep_threshold"], values["keep_rule"] == "probability")


def percent(share: float | None) -> str:
    """`12.5 %` for 0.125."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def moment(time: datetime.datetime | None) -> str:
    """`2026-11-22 13:45 UTC`."""
    return MISSING if time is None else f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def as_json(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def link(view: str, *parts: Mapping[str, Any], **query: Any) -> str:
    """The address of a view with these values; those that are None or empty are left out."""
    values: dict[str, Any] = {}
    for part in (*parts, query):
        values |= {name: value for name, value in part.items() if value not in (None, "")}
    return f"{view}?{urlencode(values)}" if values else view


def airflow_dag(dag_id: str) -> str:
    """The address of a DAG in Airflow's own pages, from any page of ours."""
    return f"../dags/{quote(dag_id, safe='')}"


def airflow_run(address: Mapping[str, str], *more: str) -> str:
    """The address of a DAG run in Airflow's own pages, from any page of ours.

    `more` is what follows, such as tasks/release.
    """
    return "/".join([airflow_dag(address["dag_id"]), "runs", quote(address["run_id"], safe=""), *more])
