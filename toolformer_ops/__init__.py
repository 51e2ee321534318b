"""Toolformer as a system: text in, scored tool calls in SQL, a released data set and a finetuned model on S3.

The method is that of Schick et al., "Toolformer: Language Models Can Teach Themselves to Use Tools" (2023).
CONTRIBUTING.md lists the rooms. `annotate`, `explain` and `open_run` are those of `notebook.py`, `Annotator` that of
`annotator.py`, which are imported when one of them is asked for: this module imports nothing, since DAG files
and every stage import it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolformer_ops.annotator import Annotator
    from toolformer_ops.notebook import annotate, explain, open_run

__version__ = "0.1.0"
__all__ = ["Annotator", "annotate", "explain", "open_run"]


def __getattr__(name: str) -> Any:
    """The annotator, or a function of a notebook; raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Annotator":
        from toolformer_ops.annotator import Annotator

        return Annotator
    from toolformer_ops import notebook

    return getattr(notebook, name)
