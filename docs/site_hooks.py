"""What the site needs beside Markdown: pages from the repository's root, links out of `docs/`, formulas.

MkDocs calls this.
"""

import html
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""By file of the root, the page of the site: the README is its first page."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FORMULA = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write formulas as MathML, and lead links to where the site has the page; a link to a source file becomes its path.

    Raises:
        FileNotFoundError: a link leads to nothing in the repository.
    """
    here = (ROOT / "docs" / page.file.src_path).parent
    folder = ROOT if page.file.src_path in ROOT_PAGES.values() else here

    def lead(found: re.Match[str]) -> str:
        is_picture, text, target = found.groups()
        address, hash_mark, anchor = target.partition("#")
        if not address or "://" in address or address.startswith("mailto:"):
            return found.group(0)
        path = (folder / address).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_path}: {target} leads to nothing")
        if path.is_relative_to(ROOT / "docs") and path.suffix in (".md", ".png", ".toml"):
            return f"{is_picture}[{text}]({os.path.relpath(path, here)}{hash_mark}{anchor})"
        name = str(path.relative_to(ROOT))
        if name in ROOT_PAGES:
            return f"[{text}]({os.path.relpath(ROOT / 'docs' / ROOT_PAGES[name], here)}{hash_mark}{anchor})"
        return text if name in text else f"{text} (`{name}`)"

    with_formulas = FORMULA.sub(
        lambda found: f"<p>{convert(html.unescape(found[1]), display='block')}</p>", markdown
    )
    return LINK.sub(lead, with_formulas)
