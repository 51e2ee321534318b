"""Work "launches": how many operations a decode step dispatches and how often it reads from the device, counted on a CPU.

On a GPU each operation is a launch, of 4 to 7 microseconds, and each read waits for all that was launched before. Both are the
same for a model of any size: models here are tiny, with random weights, in the shapes of four architectures. Views and allocations
are not counted, they launch nothing. Counted are the steps of sampling and of writing with tools, with 1, 8 and 64 texts, the texts
in one set of operations as on a GPU; nothing is timed.
"""

import collections
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.random_models import prompt_tokenizer, random_network, text_of_tokens
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.language_model import AnnotationPrompt, LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.tokenization import Tokenization

TEXTS = (1, 8, 64)
ARCHITECTURES = ("llama", "gpt2", "gptj", "gemma2")
PROMPT = AnnotationPrompt("Calculator", "Add calls to a Calculator.\nInput: {text}\nOutput:")
TEXT_TOKENS = (9, 16)
"""Shortest and longest text: they differ, as texts do."""
POSITIONS, SAMPLES, NEW_TOKENS = 2, 4, 6
LAYERS = (2, 4)
"""Each model in two depths: what a step of the deeper one dispatches more is the layers' part."""
ALLOCATIONS = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "lift_fresh")
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2")
READING_METHODS = ("tolist", "cpu")


@dataclass
class StepCount:
    """What one pass through the network and what follows it dispatched."""

    tokens: int
    operations: collections.Counter[str] = field(default_factory=collections.Counter)
    reads: int = 0


@dataclass(frozen=True)
class Counted:
    """The median step of one architecture and number of texts."""

    architecture: str
    work: str
    texts: int
    rows: int
    """Most rows of a pass."""
    a_layer: float
    """Operations that one layer more adds to a step."""
    outside: float
    """Operations of a step that do not depend on the number of layers: embeddings, masks, the choice of the next tokens."""
    reads: int
    """Most reads of a step."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, count: Callable[[str], None], read: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count
        self._read = read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # what is only a name for other operations, such as a reshape that copies, is counted as those
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        name = func.overloadpacket.__name__
        if name in READS:
            self._read()
        if not func.is_view and name not in ALLOCATIONS and name != "_unsafe_view":
            self._count(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """On a CPU `tolist` and `cpu` dispatch nothing."""

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in READING_METHODS:
            self._read()
        return func(*args, **(kwargs or {}))


@contextmanager
def counting(network: Any) -> Iterator[list[StepCount]]:
    """Collects one count a pass through `network`: the pass and what follows until the next."""
    steps: list[StepCount] = []

    def begin(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        steps.append(StepCount(kwargs["input_ids"].numel()))

    def count(name: str) -> None:
        if steps:
            steps[-1].operations[name] += 1

    def read() -> None:
        if steps:
            steps[-1].reads += 1

    hook = network.base_model.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        with _Operations(count, read), _Methods(read):
            yield steps
    finally:
        hook.remove()


def count_sampling(model: CausalModel, tokenizer: Any, texts: Sequence[str]) -> list[StepCount]:
    """The decode steps in which calls are sampled at two positions of each text."""
    engine = LanguageModel(model, Tokenization(tokenizer), "counted")
    positions = [
        [one.token for one in found] for found in engine.find_positions(PROMPT, texts, at_most=POSITIONS, threshold=0.0)
    ]
    sampler = engine.start_sampling(
        PROMPT, samples=SAMPLES, max_new_tokens=NEW_TOKENS, call_start=" [", temperature=1.0, top_p=1.0
    )
    for number, (text, tokens) in enumerate(zip(texts, positions, strict=True)):
        sampler.add(text, tokens, str(number))
    with counting(model.network) as steps:
        sampler.finish()
    return steps


def count_writing(model: CausalModel, tokenizer: Any, texts: Sequence[str]) -> list[StepCount]:
    """The decode steps of writing with tools; passes in which texts take in several tokens are left out."""
    writer = WritingModel(model, tokenizer, "counted", Settings(_env_file=None), ("Calculator",))  # type: ignore[call-arg]
    with counting(model.network) as steps:
        writer.write([Prompt(text) for text in texts], DecodingSettings(max_new_tokens=NEW_TOKENS))
    return [step for step in steps[1:] if len(texts) / 2 < step.tokens <= len(texts)]


def tiny_model(architecture: str, layers: int) -> tuple[CausalModel, Any]:
    """A random model and its tokenizer; its texts are attended to in one set of operations."""
    from transformers import Gemma2Config, GPT2Config, GPTJConfig, LlamaConfig

    tokenizer = prompt_tokenizer()
    end = tokenizer.eos_token_id
    ids = {"vocab_size": len(tokenizer), "bos_token_id": end, "eos_token_id": end}
    llama = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4}
    llama |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, **ids}
    gpt = {"n_embd": 32, "n_layer": layers, "n_head": 4, "n_positions": 1024, **ids}
    config = {
        "llama": lambda: LlamaConfig(**llama),
        "gpt2": lambda: GPT2Config(**gpt),
        "gptj": lambda: GPTJConfig(rotary_dim=4, **gpt),
        "gemma2": lambda: Gemma2Config(head_dim=8, query_pre_attn_scalar=8, sliding_window=24, **llama),
    }[architecture]()
    network = random_network(config)
    with torch.no_grad():  # no text ends before it is as long as it may be
        network.get_output_embeddings().weight[end] = 0.0
    model = CausalModel(network, 1024)
    model.kind, model.texts_together = "cuda", True
    model.memory = DeviceMemory(network, free_bytes=2**36, like="cuda")
    return model, tokenizer


def measure_launches(
    architectures: Sequence[str] = ARCHITECTURES, numbers: Sequence[int] = TEXTS
) -> list[dict[str, Any]]:
    """One entry for each architecture, work and number of texts."""
    found: list[dict[str, Any]] = []
    for architecture in architectures:
        models = [tiny_model(architecture, layers) for layers in LAYERS]
        for number in numbers:
            shortest, longest = TEXT_TOKENS
            tokenizer = models[0][1]
            texts = [text_of_tokens(tokenizer, shortest + one % (longest - shortest + 1), one) for one in range(number)]
            for work, counted in (("sampling", count_sampling), ("writing with tools", count_writing)):
                by_depth = [counted(model, tokenizer, texts) for model, _ in models]
                totals = [statistics.median(step.operations.total() for step in steps) for steps in by_depth]
                a_layer = (totals[1] - totals[0]) / (LAYERS[1] - LAYERS[0])
                found.append(
                    asdict(
                        Counted(
                            architecture=architecture,
                            work=work,
                            texts=number,
                            rows=max(step.tokens for steps in by_depth for step in steps),
                            a_layer=a_layer,
                            outside=totals[0] - LAYERS[0] * a_layer,
                            reads=max(step.reads for steps in by_depth for step in steps),
                        )
                    )
                )
    return found
