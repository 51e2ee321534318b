"""What goes wrong with an embedded service, as one exception that a user can act on."""

from toolformer_ops.errors import ToolformerError


class ServiceError(ToolformerError):
    """An embedded service cannot be installed, started, reached or stopped."""
