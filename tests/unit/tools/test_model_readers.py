"""Models that read passages: the real loading code with tiny random checkpoints, and what is made of their words."""

import json
import shutil
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from tests.tiny_models import train_tokenizer
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ToolError
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.tools import model_readers
from toolformer_ops.tools.model_readers import (
    CausalReader,
    SequenceToSequenceReader,
    SpanReader,
    answer_of,
    fill_prompt,
    spans_in,
)
from toolformer_ops.tools.retrieval.bm25_index import FoundPassage

QUESTIONS = ["Where was Joe Biden born?", "Who manufactures Coke, and where?"]
PASSAGES = [
    [FoundPassage("Joe Biden", "He was born in Scranton.", 2.0)],
    [FoundPassage("Coke", "The Coca-Cola Company makes it. " * 5, 2.0), FoundPassage("Tea", "A drink.", 1.0)],
]


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory):
    """An encoder-decoder with two layers, random weights and a tokenizer of single bytes."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    tokenizer = train_tokenizer(vocabulary=257)  # 256 bytes and the end of a text
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(folder)
    ids = {"pad_token_id": 257, "eos_token_id": 0, "decoder_start_token_id": 257}
    torch.manual_seed(5)
    config = T5Config(vocab_size=258, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **ids)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture
def t5_reader(tiny_t5):
    return SequenceToSequenceReader(str(tiny_t5), Settings())


def generator(window: int = 10_000) -> Any:
    """Answers its prompts; refuses those longer than `window` characters, as a model with a short window does."""
    model = Mock(prompts=[])

    def generate_texts(prompts: Sequence[str], *, max_new_tokens: int, stop: str) -> list[str]:
        assert (max_new_tokens, stop) == (32, "\n")
        if any(len(prompt) > window for prompt in prompts):
            raise ModelError("too long")
        model.prompts += prompts
        return [f" about {prompt.rpartition('Question: ')[2].split()[0]}" for prompt in prompts]

    model.generate_texts = generate_texts
    return model


def test_passages_fill_the_slot_with_the_question_best_first():
    passages = [FoundPassage("Slot", "{text}", 3.0), *PASSAGES[0]]
    assert fill_prompt("Read.\n{text}\nAnswer:", "Who?", passages) == (
        "Read.\nSlot: {text}\nJoe Biden: He was born in Scranton.\nQuestion: Who?\nAnswer:"
    )


def test_the_first_line_that_says_something_answers():
    assert answer_of("\n\n  Scranton,  Pennsylvania \nQuestion: Who?") == ("Scranton, Pennsylvania",)
    assert answer_of("...") == ()


def test_a_short_window_gets_fewer_passages_only_where_they_do_not_fit():
    whole, answers = generator(), [("about Where",), ("about Who",)]
    own = model_readers.load_causal_model(Settings(qa_reader="causal"), lambda: whole)
    assert CausalReader(own).read(QUESTIONS, PASSAGES) == answers
    short = generator(window=max(map(len, whole.prompts)) - 1)
    assert CausalReader(short).read(QUESTIONS, PASSAGES) == answers
    assert "He was born in Scranton." in short.prompts[0]
    assert "Coke: The Coca-Cola Company" in short.prompts[1]
    assert "Tea: A drink." not in short.prompts[1]
    assert CausalReader(generator(window=10)).read(QUESTIONS, PASSAGES) == [(), ()]


def test_an_encoder_decoder_reads_the_same_wherever_it_is_from_in_any_company(
    s3_settings, tiny_t5, t5_reader, monkeypatch
):
    together = t5_reader.read(QUESTIONS, PASSAGES)
    assert all(together)
    address = publish_model(s3_settings, str(tiny_t5)).address
    assert SequenceToSequenceReader(address, s3_settings).read(QUESTIONS, PASSAGES) == together
    monkeypatch.setattr(model_readers, "BATCH_QUESTIONS", 1)
    assert t5_reader.read(QUESTIONS[::-1], PASSAGES[::-1]) == together[::-1]


def test_an_encoder_decoder_gets_as_many_passages_as_it_takes(t5_reader):
    whole = t5_reader.fitting_prompt(QUESTIONS[1], PASSAGES[1])
    assert whole == fill_prompt(t5_reader._prompt, QUESTIONS[1], PASSAGES[1])
    t5_reader.most_tokens = len(whole) - 1  # a token is a byte
    fewer = fill_prompt(t5_reader._prompt, QUESTIONS[1], PASSAGES[1][:1])
    assert t5_reader.fitting_prompt(QUESTIONS[1], PASSAGES[1]) == fewer
    t5_reader.most_tokens = 20
    assert t5_reader.read(QUESTIONS, PASSAGES) == [(), ()]


def test_what_is_no_encoder_decoder_in_safetensors_is_refused_before_its_code_runs(
    tiny_t5, tiny_model_dir, tmp_path
):
    pickled, code = (shutil.copytree(tiny_t5, tmp_path / name) for name in ("pickled", "code"))
    (pickled / "model.safetensors").unlink()
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04}.")  # an empty dict, pickled
    config = json.loads((code / "config.json").read_text())
    classes = {"AutoConfig": "homemade.Config", "AutoModelForSeq2SeqLM": "homemade.Model"}
    (code / "config.json").write_text(json.dumps({**config, "model_type": "homemade", "auto_map": classes}))
    (code / "homemade.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    for folder, said in (
        (tmp_path, "TOOLFORMER_QA_READER_MODEL"),
        (tiny_model_dir, "encoder-decoder"),
        (pickled, "safetensors"),
        (code, "contains custom code"),
    ):
        with pytest.raises(ToolError, match=said):
            SequenceToSequenceReader(str(folder), Settings())
    assert not (tmp_path / "was_run").exists()


def scorer(likely: dict[str, float]) -> Any:
    """Finds each continuation as likely as it is told to, in nats."""
    model = Mock()
    model.continuation_log_probabilities.side_effect = lambda _, texts: [
        likely.get(text, -9.0) for text in texts
    ]
    return model


def best_sentences(_: str, passages: Sequence[FoundPassage]) -> tuple[str, ...]:
    return tuple(passage.text for passage in passages)


HAMLET = [
    FoundPassage("Hamlet", "Hamlet is a tragedy that William Shakespeare wrote between 1599 and 1601.", 3.0),
    FoundPassage(
        "Faust", "Faust by Johann Wolfgang von Goethe came out on April 12, 1808, after 36 years.", 2.0
    ),
]


def test_spans_are_of_names_dates_or_numbers_that_the_question_does_not_hold():
    first, second = (
        ["William Shakespeare", "1599", "1601"],
        ["Faust", "Johann Wolfgang von Goethe", "April 12, 1808", "36"],
    )
    spans = spans_in("Who wrote Hamlet?", [passage.text for passage in HAMLET])
    assert spans == dict.fromkeys(first, 0) | dict.fromkeys(second, 1)


def test_the_likeliest_span_answers_from_the_sentence_that_matches_best():
    likely = {"William Shakespeare": -4.0, "1601": -5.0, "Johann Wolfgang von Goethe": -2.5, "Faust": -1.5}
    model = scorer({f" {span}\n": nats for span, nats in likely.items()})
    [answers] = SpanReader(model, best_sentences).read(["Who wrote Hamlet?"], [HAMLET])
    # a span of the second sentence must be 2 nats likelier than one of the first: Faust -3.5, Goethe -4.5
    assert answers == ("Faust", "William Shakespeare", "Johann Wolfgang von Goethe", "1601", "1599")
    prompt = model.continuation_log_probabilities.call_args.args[0]
    assert prompt.endswith(f"{HAMLET[0].text}\n{HAMLET[1].text}\nQuestion: Who wrote Hamlet?\nAnswer:")


def test_a_question_without_passages_has_no_span():
    tea = [FoundPassage("Tea", "a drink", 1.0)]
    assert SpanReader(scorer({}), best_sentences).read(["Tea?", "Tea?"], [tea, []]) == [("a drink",), ()]


def test_a_window_too_short_for_the_sentences_gives_the_sentences(tiny_model_dir):
    settings = Settings(qa_reader="span", qa_reader_model=str(tiny_model_dir))
    reader = SpanReader(model_readers.load_causal_model(settings, pytest.fail), best_sentences)
    long = [FoundPassage("Hamlet", HAMLET[0].text * 50, 1.0)]
    fitting, too_long = reader.read(["Who?", "Who?"], [HAMLET[:1], long])
    assert set(fitting) <= set(spans_in("Who?", [HAMLET[0].text]))
    assert too_long == (long[0].text,)
