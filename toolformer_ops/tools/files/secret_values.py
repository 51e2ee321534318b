"""The secrets that a tool file names.

They are environment variables of the process that runs the tool, never text of the file.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from toolformer_ops.config import is_of_deployment, secret_of
from toolformer_ops.errors import ToolError
from toolformer_ops.shown_text import without_secret


def _of_the_tool(names: tuple[str, ...]) -> tuple[str, ...]:
    refused = [name for name in names if is_of_deployment(name)]
    if refused:
        raise ValueError(f"{', '.join(refused)} is of this deployment itself. Name the tool's own")
    return names


SecretNames = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_of_the_tool)]
"""The names of a tool's secrets in its file; those of this deployment are refused."""


def secret_values(names: Sequence[str], tool: str) -> dict[str, str]:
    """The values of secrets by name, from the environment or the state folder's file `environment`.

    Raises:
        ToolError: one is not set; the message names it.
    """
    values = {name: secret_of(name) for name in names}
    if missing := [name for name, value in values.items() if not value]:
        raise ToolError(
            f"tool {tool}: expected the environment variables {', '.join(missing)} (`secrets` of its file), "
            "found none of that name. Set them where the stages run: in the environment, in the file "
            "`environment` of the state folder, or in the Kubernetes Secret."
        )
    return values


def without_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """The text with the names of secrets, `<API_KEY>`, instead of their values."""
    for name, value in secrets.items():
        text = without_secret(text, value, f"<{name}>")
    return text
