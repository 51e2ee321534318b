"""What a stage task does besides starting its stage, whether as a process or as a pod.

Skips where the form did not ask for it, adds its shard to the arguments, and tells which run made an asset.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

EXIT_CODES_NOT_RETRIED = frozenset({2, 3})
"""2: the request is wrong; 3: a quality gate did not pass. Trying again gives the same (`toolformer_ops.errors`)."""


def skip_unless(params: Mapping[str, Any], only_where: Mapping[str, Any] | None) -> None:
    """Skip the task unless each parameter named in `only_where` equals, or as a list holds, the value given there.

    Raises:
        AirflowSkipException: the form did not ask for this task.
    """
    for name, wanted in (only_where or {}).items():
        found = params.get(name)
        asked_for = wanted in found if isinstance(found, Sequence) and not isinstance(found, str) else found == wanted
        if not asked_for:
            raise AirflowSkipException(f"not asked for: {name} is {found!r}, and this task is for {wanted!r}.")


def with_shard(arguments: Sequence[str], shard: str | None) -> list[str]:
    """The arguments, with `--shard I/N` added for a mapped task."""
    return [*arguments, "--shard", shard] if shard else [*arguments]


def describe_assets(context: "Context", outlets: Sequence["Asset"], extra: Mapping[str, str] | None) -> None:
    """Attach ids to the asset events of this task, for whoever is scheduled by them."""
    for asset in outlets:
        context["outlet_events"][asset].extra.update(extra or {})
