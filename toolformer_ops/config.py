"""Where and with what this deployment runs: every setting, its default, and what it means.

Read from the environment (prefix `TOOLFORMER_`) and from the file `environment` in the state folder, which
`toolformer-ops up` writes for one machine; the environment wins. What decides the content of a data set is
not here: that is `runs/choices.py`. Secrets are `SecretStr`, so that they do not show when settings are
printed.
"""

import functools
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from toolformer_ops.errors import ConfigurationError, expectation

_PACKAGE = Path(__file__).resolve().parent
REPOSITORY = _PACKAGE.parent
"""The checkout, if this code runs from one: the folder that holds `toolformer_ops/`, `dags/` and `sql/`."""
IS_CHECKOUT = not (_PACKAGE / "shipped").is_dir()
"""Whether this code runs from a checkout, editable or not; otherwise from a wheel."""
SHIPPED = REPOSITORY if IS_CHECKOUT else _PACKAGE / "shipped"
"""The folder that holds `dags/`, `sql/` and `deploy/pod-templates/`: a wheel has them inside the package
(pyproject.toml)."""

ENV_PREFIX = "TOOLFORMER_"
STATE_DIR_VARIABLE = f"{ENV_PREFIX}STATE_DIR"

MOST_SHARDS = 1024
"""So many mapped tasks a stage Airflow allows at most (`core.max_map_length`)."""


def state_dir() -> Path:
    """The folder for everything that a machine keeps: databases, models, indices, logs.

    In a checkout it is `.toolformer`; installed from a wheel, a folder of the user's data (XDG), so that
    commands find it from every folder.
    """
    if folder := os.environ.get(STATE_DIR_VARIABLE):
        return Path(folder).resolve()
    if IS_CHECKOUT:
        return REPOSITORY / ".toolformer"
    return (
        Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "toolformer-ops"
    ).resolve()


class Settings(BaseSettings):
    """The settings of one deployment; `load_settings` reads them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    state_dir: Path = Field(
        default_factory=state_dir, description="Folder for databases, models, indices and logs."
    )

    database_dsn: SecretStr = Field(
        default=SecretStr(""),
        description="Postgres of the factory: postgresql://owner:password@host:port/toolformer.",
    )
    reader_dsn: SecretStr = Field(
        default=SecretStr(""),
        description="The same database by the read-only role of the run page and of `sql`: toolformer_page.",
    )
    reviewer_dsn: SecretStr = Field(
        default=SecretStr(""),
        description="The same database by the role that may add judgements and nothing else.",
    )

    lock_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Longest wait of a statement for a lock that another process has. Half of it: how long a process may say "
        "nothing within a transaction that others wait for, before its session is ended.",
    )

    s3_endpoint_url: str | None = Field(default=None, description="S3 endpoint; empty means AWS.")
    s3_access_key_id: SecretStr | None = Field(
        default=None, description="S3 access key; empty means boto3's own search."
    )
    s3_secret_access_key: SecretStr | None = Field(default=None, description="S3 secret key.")
    s3_region: str = Field(default="us-east-1", description="S3 region.")
    s3_bucket: str = Field(
        default="toolformer", description="Bucket for releases, models and uploaded corpora."
    )

    device: str = Field(default="cpu", description="torch device of the language model: cpu, cuda, cuda:0.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="Number format of the language model's weights; part of every recipe. If it is not said and the device is a "
        "GPU: bfloat16.",
    )
    training_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the passes of a training; the weights that it changes are float32. auto: bfloat16 on a GPU "
        "that has it, else float32. On a CPU with AVX512_BF16 or AMX, bfloat16 takes less time.",
    )
    model_parallel: Literal["off", "layers"] = Field(
        default="off",
        description="How a language model that is too large for one GPU uses all that the process sees (device cuda). layers: "
        "each GPU has some of the layers, and they work in turn. Pods of gpu.yaml that ask for several GPUs "
        "have layers.",
    )
    compile: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: on a GPU, in bfloat16 and float16, torch compiles norms, rotary positions and activations, in a "
        "training, too; this needs a C compiler. off: it compiles nothing.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=256,
        description="CPU threads of one model process. A training on a CPU takes all cores, unless it runs in a pod.",
    )
    hub_offline: bool = Field(
        default=False, description="Never ask a model hub; models are paths or in the cache."
    )

    cache_dir: Path | None = Field(
        default=None,
        description="Cache of models and indices from S3, best one a node; empty means `cache` in the state folder.",
    )
    cache_gib: float | None = Field(
        default=None,
        gt=0,
        description="Most that the cache may hold, GiB; empty: what its disk has room for.",
    )

    wiki_index: str = Field(
        default="",
        description="BM25 index of WikiSearch and QA: a folder, or s3:// of a published one; empty means `wiki_index` in the state "
        "folder, and for pods the newest published one.",
    )
    qa_reader: Literal["best_sentence", "span", "causal", "sequence_to_sequence"] = Field(
        default="best_sentence",
        description="How the QA tool reads an answer out of the retrieved passages: a whole sentence, without a model; the "
        "likeliest name, date or number; or what a model writes.",
    )
    qa_reader_model: str | None = Field(
        default=None,
        description="Checkpoint of a QA reader that is a model, as a folder, id@revision or s3://. Empty: the run's model.",
    )
    translator_model: str | None = Field(
        default=None,
        description="NLLB checkpoint with which the MT tool translates: a folder, id@revision or s3://; empty: the run's language "
        "model, prompted.",
    )
    tools_dir: Path | None = Field(
        default=None,
        description="Folder of tool files, each a tool of a database, a function or a server; empty means `tools` in the state "
        "folder.",
    )
    tool_time_limit_seconds: float = Field(default=30.0, gt=0, description="Time limit of one tool call.")

    micro_batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of text that a stage with a model works on together and commits in one transaction; empty: 4,096 on a "
        "CPU, 65,536 on a GPU. A longer document is a micro-batch alone.",
    )
    micro_batch_documents: int = Field(
        default=256,
        ge=1,
        le=4096,
        description="Most documents of a micro-batch, however short they are.",
    )
    max_shards: int = Field(
        default=64,
        ge=1,
        le=MOST_SHARDS,
        description="Most shards of a stage: so many processes or GPUs work on it at once. Larger maps slow Airflow's scheduler.",
    )
    outage_seconds: float = Field(
        default=600.0,
        ge=0,
        description="How long a stage waits for what is not there now (Postgres, S3, a GPU, disk space) before it fails.",
    )
    task_hours: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="Longest time of one try of a task in hours, by stage, where it is not the default; as JSON: "
        '{"finish-run": 12, "annotate": 48}. docs/operations.md has the defaults.',
    )
    corpus_roots: str = Field(
        default="",
        description="Folders of this machine that runs may read corpora, models, evaluation data and Wikipedia from, with colons "
        "between; S3 is always allowed. Empty: all but the folders of the system and of programs (/usr, "
        "/opt, /root; what is below the current folder or the home may be read), hidden ones except the "
        "hub's cache, and state folders without their `demo` and `models`. In the image: /corpora.",
    )

    runner: Literal["local", "kubernetes"] = Field(
        default="local", description="Where GPU and CPU stages run."
    )
    schedules_dir: Path | None = Field(
        default=None,
        description="Folder of schedule files, each a DAG; empty: none. `toolformer-ops up` sets it to `schedules` in the state "
        "folder.",
    )
    approvers: str = Field(
        default="",
        description="Whose yes counts (`approve`): names as Airflow knows them, with commas; empty: all who may edit the DAG.",
    )
    approval_hours: float = Field(
        default=24.0,
        gt=0,
        le=720,
        description="How long a run waits for a person's yes; no answer by then counts as no.",
    )
    audit_schedule: str = Field(
        default="0 6 * * 0", description="Cron expression of the weekly audit; `off`: by hand only."
    )
    retention_schedule: str = Field(
        default="0 5 * * 0",
        description="Cron expression of the DAG `retention`; `off`: by hand only.",
    )
    retention_drops: bool = Field(
        default=False,
        description="Whether the DAG `retention` drops what its policy lets go; else it only says so.",
    )
    retention_days: int = Field(
        default=30,
        ge=0,
        description="Retention: what was made or used within so many days stays.",
    )
    retention_releases: int = Field(
        default=0,
        ge=0,
        description="Retention: the newest releases of each corpus and schedule that stay on S3; 0: all.",
    )
    retention_models: int = Field(
        default=0,
        ge=0,
        description="Retention: the newest finetuned models of each corpus and schedule that stay on S3; 0: all.",
    )
    default_model: str = Field(
        default="",
        description="Language model that the trigger form starts with, and of commands that name none.",
    )
    airflow_url: str = Field(default="http://127.0.0.1:8080", description="Address of the Airflow UI.")
    airflow_username: str = Field(default="admin", description="User of the Airflow UI and of its REST API.")
    airflow_password: SecretStr = Field(default=SecretStr(""), description="That user's password.")

    kubernetes_namespace: str = Field(default="toolformer", description="Namespace of the stage pods.")
    kubernetes_image: str = Field(default="", description="Image of the stage pods, with tag or digest.")
    kubernetes_templates: Path = Field(
        default=SHIPPED / "deploy" / "pod-templates" / "a100",
        description="Folder of the pod templates gpu.yaml, cpu.yaml and finetune.yaml.",
    )
    kubernetes_config_file: Path | None = Field(
        default=None,
        description="kubeconfig by which Airflow reaches the cluster; empty: as the pod that Airflow runs in.",
    )
    image: str = Field(default="", description="Image that this process runs in, recorded with each run.")

    @property
    def sends_checkpoints(self) -> bool:
        """Whether a finetuning keeps its checkpoints on S3 as well: in a pod, whose disk goes with it."""
        return self.runner == "kubernetes"

    @property
    def cache_folder(self) -> Path:
        """Folder of the cache of models and indices from S3."""
        return self.cache_dir or self.state_dir / "cache"

    @property
    def tools_folder(self) -> Path:
        """Folder of the tool files."""
        return self.tools_dir or self.state_dir / "tools"

    @model_validator(mode="before")
    @classmethod
    def _format_of_the_device(cls, values: dict[str, Any]) -> dict[str, Any]:
        """bfloat16 if no format is said and the device is a GPU, which computes it many times as fast as float32."""
        if not values.get("dtype") and str(values.get("device", "")).startswith("cuda"):
            return {**values, "dtype": "bfloat16"}
        return values

    @property
    def approver_names(self) -> list[str]:
        """The names of `approvers`."""
        return [name.strip() for name in self.approvers.split(",") if name.strip()]

    @property
    def index_dir(self) -> Path:
        """Folder in which the BM25 index is built; it is searched unless a published index is."""
        is_folder = self.wiki_index and not self.wiki_index.startswith("s3://")
        return Path(self.wiki_index) if is_folder else self.state_dir / "wiki_index"


def is_of_deployment(variable: str) -> bool:
    """Whether an environment variable is of this deployment itself, or of Airflow: no tool and no endpoint may have it."""
    return variable.startswith((ENV_PREFIX, "AIRFLOW"))


def secret_of(name: str) -> str:
    """The secret of that name, from an environment variable or the state folder's file `environment`; else empty."""
    return os.environ.get(name) or dotenv_values(state_dir() / "environment").get(name) or ""


@functools.lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Settings from the environment and the state folder's `environment` file, read once a process.

    A fork reads them again.

    Raises:
        ConfigurationError: a value is not valid; the message names its variable and does not repeat the value.
    """
    file = state_dir() / "environment"
    try:
        return Settings(_env_file=file)  # type: ignore[call-arg]
    except ValidationError as error:
        wrong = []
        for item in error.errors():
            wrong.append(f"{ENV_PREFIX}{str(item['loc'][0]).upper()}: {expectation(item)}")
        problems = "; ".join(wrong)
    except SettingsError as error:
        problems = f"{error}; it is read as JSON"
    raise ConfigurationError(f"settings: {problems}. Correct it in the environment, or in {file}.")


# Airflow forks: a worker that takes the place of a dead one, from a scheduler that may have read the settings
# hours ago.
os.register_at_fork(after_in_child=load_settings.cache_clear)
