"""Tensor parallelism: the heads and columns of each layer are divided among processes, one a GPU, which compute at the same time.

Each process runs the engine on its own part: its heads, their keys and values, its columns of the matrices. The processes meet
inside each layer, where transformers adds the parts up (`tp_plan`), so all of them must make the same passes in the same order.
`ParallelModel` is the engine in the process of the stage. It sends each call of the engine, a name and arguments, to the others
through pipes, and then makes it, too. The others drop what they find. All draw the same tokens, since all see the same logits.

Budgets are those of the process with the least memory. A process that ends, or a pass that fails in one process alone, leaves the
others waiting inside a layer. Then all processes end, the stage's with `EXIT_INFRASTRUCTURE`, and what is committed stays.

Nothing here decides what is computed: losses differ from those of one process by rounding.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from toolformer_ops import termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_INFRASTRUCTURE, ModelError, ToolformerError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.sampling import Sampler
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.models.identity import model_identity
from toolformer_ops.models.loading import load_tokenizer, load_weights
from toolformer_ops.records import SampledContinuation

logger = logging.getLogger(__name__)

CALLS = (
    "find_positions",
    "forget_texts",
    "losses_without_call",
    "score_texts",
    "losses_with_result",
    "rounding_differences",
    "allow_rounding",
    "score_details",
    "text_losses",
    "generate_texts",
    "continuation_log_probabilities",
)
"""Methods of the engine that compute, or that change what is computed; `start_sampling` is the other one."""
LONGEST_PASS = timedelta(minutes=30)
"""After which a process that waits for another one inside a layer gives up. Loading a model takes part of it."""


class ParallelModel:
    """The engine over several processes; its methods are those of `LanguageModel`."""

    def __init__(self, own: LanguageModel, others: "Others") -> None:
        self._own = own
        self._others = others

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        return self._others.together(name, found) if name in CALLS else found

    def start_sampling(self, *arguments: Any, **settings: Any) -> "ParallelSampler":
        """As `LanguageModel.start_sampling`."""
        start = self._others.together("start_sampling", self._own.start_sampling)
        return ParallelSampler(start(*arguments, **settings), self._others)

    def close(self) -> None:
        """End the other processes; the model can no longer be used."""
        self._others.end()
        torch.distributed.destroy_process_group()


class ParallelSampler:
    """A sampler in every process; a process has one at a time, the newest."""

    def __init__(self, own: Sampler, others: "Others") -> None:
        self._own = own
        self._others = others

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """As `Sampler.add`."""
        self._others.together("add", self._own.add)(text, tokens, seed_key)

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """As `Sampler.finish`."""
        found: list[list[list[SampledContinuation]]] = self._others.together("finish", self._own.finish)()
        return found


def load_parallel(
    path_or_hub_id: str,
    revision: str | None,
    dtype: str,
    device: str,
    threads: int,
    settings: Settings,
    *,
    processes: int,
    on_loss: Callable[[], None] | None = None,
) -> LanguageModel:
    """The engine with its weights divided among this process and `processes` - 1 others, which end with it.

    `device` is cpu, or cuda: then process n takes GPU n. `on_loss` is called, from another thread, where another process has ended
    before `close`; it ends this process unless it is given.

    Raises:
        ModelError: there is no such model, or it cannot be divided among so many processes.
        ModelHubError, NoDeviceError: the hub does not answer, or no GPU is there.
    """
    identity = model_identity(path_or_hub_id, revision, read=True, settings=settings)
    weights = (path_or_hub_id, revision, dtype, device, threads, settings)
    require_divisible(path_or_hub_id, revision, settings, processes)
    others = Others(processes, weights, on_loss or _end_process)
    try:
        own = _join(0, processes, others.meeting_point, weights, identity)
    except BaseException:
        others.end()
        raise
    return ParallelModel(own, others)  # type: ignore[return-value] # it has all of its methods


def require_divisible(path_or_hub_id: str, revision: str | None, settings: Settings, processes: int) -> None:
    """Look whether each process gets as many heads as every other.

    Raises:
        ModelError: it does not, or transformers does not know how to divide this architecture.
    """
    from toolformer_ops.models.loading import load_config

    config = load_config(path_or_hub_id, revision, settings)
    decoder = config.get_text_config(decoder=True)
    heads = int(decoder.num_attention_heads)
    shared = int(getattr(decoder, "num_key_value_heads", None) or heads)
    instead = "Set TOOLFORMER_MODEL_PARALLEL=layers, which takes any number and any model."
    if not getattr(decoder, "base_model_tp_plan", None):
        raise ModelError(
            f"{path_or_hub_id}: expected an architecture that transformers can divide (base_model_tp_plan), found "
            f"{config.model_type}. {instead}"
        )
    if shared % processes:
        raise ModelError(
            f"{path_or_hub_id}: expected a number of key heads that {processes} processes can share, found {shared}. {instead}"
        )


class Others:
    """The other processes, as the stage's sees them."""

    def __init__(self, processes: int, weights: tuple[Any, ...], on_loss: Callable[[], None]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="toolformer-parallel-")
        self.meeting_point = str(Path(self._folder.name) / "processes")
        """A file by which they find each other, when they start and when float32 weights are loaded."""
        self._on_loss = on_loss
        self._closing = threading.Event()
        start = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(1, processes):
            here, there = start.Pipe()
            process = start.Process(
                target=_follow, args=(there, rank, processes, self.meeting_point, weights, os.getpid()), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        atexit.register(self.end)  # or multiprocessing would wait for them
        threading.Thread(target=self._watch, daemon=True, name="tensor-parallel").start()

    def together(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        """A function that has the others make a call, and makes it here by `own`."""

        def call(*arguments: Any, **options: Any) -> Any:
            for pipe in self._pipes:
                pipe.send((name, arguments, options))
            try:
                return own(*arguments, **options)
            except (ToolformerError, ValueError):
                raise  # of what was asked for: the others have raised it as well
            except BaseException:
                self.end()  # they wait for this process inside a layer
                raise

        return call

    def end(self) -> None:
        """Kill them: they hold nothing that lasts, and may wait inside a layer."""
        self._closing.set()
        for process in self._processes:
            process.kill()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def _watch(self) -> None:
        [first, *_] = connection.wait([process.sentinel for process in self._processes])
        if not self._closing.is_set():
            codes = [process.exitcode for process in self._processes if process.sentinel == first]
            logger.error("a process that holds a part of the model ended with status %s; its message is above", *codes)
            self._on_loss()


def _end_process() -> None:
    """End this process, which may wait inside a layer for ever."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_INFRASTRUCTURE)


def _join(rank: int, processes: int, meeting_point: str, weights: tuple[Any, ...], identity: str) -> LanguageModel:
    """The engine on the part of one process, once all are there."""
    path_or_hub_id, revision, dtype, device, threads, settings = weights
    # 1. Meet. They are processes of one machine: addresses that lead elsewhere are not needed, and may not be there.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    torch.distributed.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        init_method=f"file://{meeting_point}",
        rank=rank,
        world_size=processes,
        timeout=LONGEST_PASS,
        device_id=None if device == "cpu" else torch.device("cuda", rank),
    )

    # 2. Load.
    def load(number_format: str) -> CausalModel:
        os.environ["LOCAL_RANK"] = str(rank)  # from which transformers knows the GPU
        try:
            network = load_weights(
                path_or_hub_id, revision, number_format, device, threads, settings, processes=processes
            )
        finally:
            del os.environ["LOCAL_RANK"]  # a training in this process would look for others
        return CausalModel(network, longest)

    tokenizer = load_tokenizer(path_or_hub_id, revision, settings)
    longest = tokenizer.model_max_length
    return LanguageModel(load(dtype), Tokenization(tokenizer), identity, lambda: load("float32"))


def _follow(
    calls: Connection, rank: int, processes: int, meeting_point: str, weights: tuple[Any, ...], parent: int
) -> None:
    """What another process does: each call that the first one makes."""
    # SIGTERM may be sent to all processes of a stage; the first one decides when they end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    termination.end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    try:
        model = _join(rank, processes, meeting_point, weights, "")
    except ToolformerError as error:
        if not calls.poll(20):  # the first process has the same error and ends, or else it waits for this one
            logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
            sys.exit(EXIT_INFRASTRUCTURE)
        return
    sampler: Sampler | None = None
    while True:
        try:
            name, arguments, options = calls.recv()
        except EOFError:
            return
        with contextlib.suppress(ToolformerError, ValueError):  # the first process says it
            found = getattr(sampler if name in ("add", "finish") else model, name)(*arguments, **options)
            if name == "start_sampling":
                sampler = found
