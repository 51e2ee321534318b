"""Models that read passages: the real loading code with tiny random checkpoints, and what is made of their words."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ToolError
from toolformer_ops.models import model_identity
from toolformer_ops.models.publishing import publish_model
from toolformer_ops.retrieval.bm25_index import FoundPassage
from toolformer_ops.tools import model_readers
from toolformer_ops.tools.model_readers import (
    CausalReader,
    SequenceToSequenceReader,
    SpanReader,
    answer_of,
    fill_prompt,
    spans_in,
)

QUESTIONS = ["Where was Joe Biden born?", "Who manufactures Coke, and where?"]
PASSAGES = [
    [FoundPassage("1", "Joe Biden", "He was born in Scranton.", 2.0)],
    [FoundPassage("2", "Coke", "The Coca-Cola Company makes it. " * 5, 2.0), FoundPassage("3", "Tea", "A drink.", 1.0)],
]


def save_tokenizer(folder: Path, **options: object) -> int:
    """A tokenizer of single bytes; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        token: number for number, token in enumerate(["<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", **options)
    fast.save_pretrained(folder)
    return len(vocabulary)


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder with two layers and random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(5)
    size = save_tokenizer(folder)
    config = T5Config(
        vocab_size=size,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model with two layers and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(5)
    size = save_tokenizer(folder, bos_token="</s>")
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Generator:
    """Notes its prompts; refuses those longer than `window` characters, as a model with a short window does."""

    def __init__(self, *answers: str, window: int = 10_000) -> None:
        self._answers = answers
        self._window = window
        self.prompts: list[str] = []

    def generate_texts(self, prompts: Sequence[str], *, max_new_tokens: int, stop: str) -> list[str]:
        assert (max_new_tokens, stop) == (32, "\n")
        if any(len(prompt) > self._window for prompt in prompts):
            raise ModelError("too long")
        self.prompts.extend(prompts)
        return [self._answers[number % len(self._answers)] for number in range(len(prompts))]


def test_passages_and_question_fill_the_slot_best_first() -> None:
    assert fill_prompt("Read.\n{text}\nAnswer:", "Who?", PASSAGES[1][1:] + PASSAGES[0]) == (
        "Read.\nTea: A drink.\nJoe Biden: He was born in Scranton.\nQuestion: Who?\nAnswer:"
    )


def test_a_passage_that_holds_the_slots_name_stays_as_it_is() -> None:
    assert fill_prompt("{text}!", "Who?", [FoundPassage("1", "A", "{text}", 1.0)]) == "A: {text}\nQuestion: Who?!"


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (" Scranton\nQuestion: Who?", ("Scranton",)),
        ("\n\n  Scranton,  Pennsylvania ", ("Scranton, Pennsylvania",)),
        ("", ()),
        (" \n", ()),
        ("...", ()),
    ],
)
def test_the_answer_is_the_first_line_that_says_something(written: str, answer: tuple[str, ...]) -> None:
    assert answer_of(written) == answer


def test_a_causal_model_continues_the_prompt() -> None:
    generator = Generator(" Scranton", " The Coca-Cola Company")
    assert CausalReader(generator).read(QUESTIONS, PASSAGES) == [("Scranton",), ("The Coca-Cola Company",)]
    assert generator.prompts[0].endswith(
        "Joe Biden: He was born in Scranton.\nQuestion: Where was Joe Biden born?\nAnswer:"
    )


def test_a_short_window_gets_fewer_passages_and_the_other_questions_all_of_theirs() -> None:
    prompts = Generator("x")
    CausalReader(prompts).read(QUESTIONS, PASSAGES)
    longest = max(len(prompt) for prompt in prompts.prompts)
    generator = Generator("an answer", window=longest - 1)
    assert CausalReader(generator).read(QUESTIONS, PASSAGES) == [("an answer",), ("an answer",)]
    assert "Tea: A drink." not in generator.prompts[1]
    assert "Coke: The Coca-Cola Company" in generator.prompts[1]
    assert "He was born in Scranton." in generator.prompts[0]


def test_a_window_too_short_for_the_question_gives_no_answer() -> None:
    assert CausalReader(Generator("x", window=10)).read(QUESTIONS, PASSAGES) == [(), ()]


def test_an_encoder_decoder_checkpoint_is_loaded_and_writes_the_same_each_time(tiny_t5: Path) -> None:
    first = SequenceToSequenceReader.load(str(tiny_t5), None, Settings()).read(QUESTIONS, PASSAGES)
    second = SequenceToSequenceReader.load(str(tiny_t5), None, Settings()).read(QUESTIONS, PASSAGES)
    assert first == second
    assert len(first) == 2


def test_an_encoder_decoder_checkpoint_on_s3_reads_as_its_folder_does(s3_settings: Settings, tiny_t5: Path) -> None:
    address = publish_model(s3_settings, str(tiny_t5)).address
    on_s3 = SequenceToSequenceReader.load(address, None, s3_settings).read(QUESTIONS, PASSAGES)
    assert on_s3 == SequenceToSequenceReader.load(str(tiny_t5), None, s3_settings).read(QUESTIONS, PASSAGES)
    assert model_identity(address, settings=s3_settings) == model_identity(str(tiny_t5))


def test_the_company_of_other_questions_changes_no_answer(tiny_t5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SequenceToSequenceReader.load(str(tiny_t5), None, Settings())
    together = reader.read(QUESTIONS, PASSAGES)
    monkeypatch.setattr(model_readers, "BATCH_QUESTIONS", 1)
    assert reader.read(QUESTIONS, PASSAGES) == together
    assert reader.read(QUESTIONS[::-1], PASSAGES[::-1]) == together[::-1]


def test_an_encoder_decoder_gets_as_many_passages_as_it_takes(tiny_t5: Path) -> None:
    reader = SequenceToSequenceReader.load(str(tiny_t5), None, Settings())
    whole = reader.fitting_prompt(QUESTIONS[1], PASSAGES[1])
    assert whole == fill_prompt(reader._prompt, QUESTIONS[1], PASSAGES[1])
    reader.most_tokens = len(whole) - 1  # a token is a byte
    assert reader.fitting_prompt(QUESTIONS[1], PASSAGES[1]) == fill_prompt(
        reader._prompt, QUESTIONS[1], PASSAGES[1][:1]
    )
    reader.most_tokens = 20
    assert reader.read(QUESTIONS, PASSAGES) == [(), ()]


def test_a_folder_without_a_checkpoint_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="TOOLFORMER_QA_READER_MODEL"):
        SequenceToSequenceReader.load(str(tmp_path), None, Settings())


def test_a_causal_checkpoint_is_refused_as_an_encoder_decoder(tiny_llama: Path) -> None:
    with pytest.raises(ToolError, match="encoder-decoder"):
        SequenceToSequenceReader.load(str(tiny_llama), None, Settings())


def test_pickled_weights_are_refused(tiny_t5: Path, tmp_path: Path) -> None:
    import torch

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_t5 / name).read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ToolError, match="safetensors"):
        SequenceToSequenceReader.load(str(tmp_path), None, Settings())


def test_code_that_comes_with_a_model_is_not_run(tiny_t5: Path, tmp_path: Path) -> None:
    for path in tiny_t5.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(
        model_type="homemade", auto_map={"AutoConfig": "homemade.Config", "AutoModelForSeq2SeqLM": "homemade.Model"}
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "homemade.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    with pytest.raises(ToolError):
        SequenceToSequenceReader.load(str(tmp_path), None, Settings())
    assert not (tmp_path / "was_run").exists()


def test_the_engine_reads_with_a_causal_checkpoint(tiny_llama: Path) -> None:
    settings = Settings(qa_reader="causal", qa_reader_model=str(tiny_llama))
    reader = CausalReader(model_readers.load_causal_model(settings, pytest.fail))
    answers = reader.read(QUESTIONS, PASSAGES)
    assert reader.read(QUESTIONS[1:], PASSAGES[1:]) == answers[1:]


def test_without_a_checkpoint_the_runs_own_model_reads() -> None:
    generator = Generator("Scranton")
    assert model_readers.load_causal_model(Settings(qa_reader="causal"), lambda: generator) is generator  # type: ignore[arg-type, return-value, comparison-overlap]
    assert CausalReader(generator).read(QUESTIONS[:1], PASSAGES[:1]) == [("Scranton",)]


class Scorer:
    """Finds each continuation as likely as it is told to, in nats; notes its prompts."""

    def __init__(self, likely: dict[str, float]) -> None:
        self._likely = likely
        self.prompts: list[str] = []

    def continuation_log_probabilities(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        self.prompts.append(prompt)
        if not continuations:
            return []
        assert all(text[0] == " " and text[-1] == "\n" for text in continuations)
        return [self._likely.get(text.strip(), -9.0) for text in continuations]


def whole_passages(question: str, passages: Sequence[FoundPassage]) -> tuple[str, ...]:
    """Stands for the best sentences."""
    return tuple(passage.text for passage in passages)


HAMLET = [
    FoundPassage("1", "Hamlet", "Hamlet is a tragedy that William Shakespeare wrote between 1599 and 1601.", 3.0),
    FoundPassage("2", "Faust", "Faust by Johann Wolfgang von Goethe came out on April 12, 1808, after 36 years.", 2.0),
]


def test_the_spans_are_names_dates_and_numbers_that_the_question_does_not_hold() -> None:
    assert spans_in("Who wrote Hamlet?", whole_passages("", HAMLET)) == {
        "William Shakespeare": 0,
        "1599": 0,
        "1601": 0,
        "Faust": 1,
        "Johann Wolfgang von Goethe": 1,
        "April 12, 1808": 1,
        "36": 1,
    }


def test_the_likeliest_span_is_the_answer_and_sentences_that_match_better_go_before() -> None:
    scorer = Scorer({"William Shakespeare": -4.0, "1601": -5.0, "Johann Wolfgang von Goethe": -2.5, "Faust": -1.5})
    [answers] = SpanReader(scorer, whole_passages).read(["Who wrote Hamlet?"], [HAMLET])
    # a span of the second sentence must be 2 nats likelier than one of the first: Faust -3.5, Goethe -4.5
    assert answers == ("Faust", "William Shakespeare", "Johann Wolfgang von Goethe", "1601", "1599")
    assert scorer.prompts[0].endswith(f"{HAMLET[0].text}\n{HAMLET[1].text}\nQuestion: Who wrote Hamlet?\nAnswer:")


def test_sentences_without_a_span_are_given_as_they_are() -> None:
    tea = [FoundPassage("3", "Tea", "a drink", 1.0)]
    assert SpanReader(Scorer({}), whole_passages).read(["What is tea?", "Tea?"], [tea, []]) == [("a drink",), ()]


def test_a_window_too_short_for_the_sentences_gives_the_sentences(tiny_llama: Path) -> None:
    settings = Settings(qa_reader="span", qa_reader_model=str(tiny_llama))
    reader = SpanReader(model_readers.load_causal_model(settings, pytest.fail), whole_passages)
    long = [FoundPassage("4", "Hamlet", HAMLET[0].text * 10, 1.0)]
    fitting, too_long = reader.read(["Who?", "Who?"], [HAMLET[:1], long])
    assert set(fitting) <= set(spans_in("Who?", [HAMLET[0].text]))
    assert too_long == (long[0].text,)
