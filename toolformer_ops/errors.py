"""Every error that this project raises on purpose.

    ToolformerError
    +-- UsageError               the caller asked for something that cannot be: not worth a retry
    |   +-- ConfigurationError   a setting is missing or wrong
    |   +-- ParameterError       a run parameter is out of its bounds
    |   +-- CorpusError          the corpus is not there or holds nothing
    |   +-- EvaluationDataError  the data of an evaluation is not there or of another format
    |   +-- ModelError           the language model is not there or cannot be used
    |   +-- SearchIndexError          the search index is not there or is broken
    |   +-- PromptError          a prompt file lacks its slot
    |   +-- CallSyntaxError      a text is not a well-formed call
    |   +-- ToolError            a tool is unknown or cannot be opened
    +-- DatabaseError            Postgres cannot be reached or refuses
    +-- ObjectStoreError         S3 cannot be reached or refuses
    +-- RecipeMismatchError      the code that runs is not the code that the run was started with
    +-- QualityError             a quality gate with severity `fail` did not pass
    +-- NothingToReleaseError    no call was kept, so there is nothing to release or to train on

A message says what was expected, what was found, and what to do about it.
`EXIT_CODES` says with which status the command line ends.
"""


class ToolformerError(Exception):
    """Base of all errors raised on purpose; its message is fit to be shown to a user."""


class UsageError(ToolformerError):
    """The request itself is wrong, so that trying again cannot help."""


class ConfigurationError(UsageError):
    """A setting is missing or has a value that cannot be used."""


class ParameterError(UsageError):
    """A run parameter is unknown or out of its bounds."""


class CorpusError(UsageError):
    """The corpus cannot be found or read as a whole (single bad records are counted, not raised)."""


class EvaluationDataError(UsageError):
    """A data set of an evaluation is not there, or its files are of another format."""


class ModelError(UsageError):
    """The language model cannot be found or used."""


class SearchIndexError(UsageError):
    """The search index cannot be found or used."""


class PromptError(UsageError):
    """A prompt file does not have exactly one slot for the text."""


class CallSyntaxError(UsageError):
    """A text does not parse as a tool call."""


class ToolError(UsageError):
    """A tool is unknown or cannot be opened as configured."""


class DatabaseError(ToolformerError):
    """Postgres cannot be reached, or a statement cannot be carried out."""


class ObjectStoreError(ToolformerError):
    """The object store cannot be reached, or refuses."""


class RecipeMismatchError(UsageError):
    """A stage's own recipe differs from the one that its run was registered with."""


class QualityError(ToolformerError):
    """A quality check with severity `fail` did not pass."""


class NothingToReleaseError(ToolformerError):
    """No call of the run was kept."""


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_RESULT = 3


def exit_code(error: BaseException) -> int:
    """The process status for `error`: 2 where a retry cannot help, 3 where there is no result, else 1."""
    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, (QualityError, NothingToReleaseError)):
        return EXIT_NO_RESULT
    return EXIT_FAILED
