"""One model proposes calls, another scores them: what crosses from the one to the other is text, whatever their vocabularies."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from tests.tiny_models import GROUPED, save_tiny_model, token_ids, train_tokenizer
from toolformer_ops.annotation.candidates import sample_paragraphs
from toolformer_ops.audit.running import audit
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.models import model_identity
from toolformer_ops.on_a_file.annotate.annotation import annotate_file
from toolformer_ops.on_a_file.look.explanation import token_at
from toolformer_ops.records import CallPosition, Document, Paragraph, PlacedCall
from toolformer_ops.runs import models
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.tools.registry import get_tool

TOOL = "Calculator"
TEXTS = [
    "Of 1400 participants, 400 (or 29%) passed the test; 1000 did not.",
    "  The shop had 520 shirts, sold 187 of them:\n\n333 are left today, he says,  and 7 more.",
    "Ñandú y pingüino: 12 + 30 = 42 animals, \u00fcber 40 of them \U0001f427 birds.",
]
CHOICES = {"max_positions": 200, "samples_per_position": 2, "sampling_threshold": 0.0, "max_call_tokens": 4}
KEEPS_ALL = {"placebos": 0, "placebo_sample": 0, "prune_below": 0.0, "keep_thresholds": {TOOL: 0.0}}
OTHER = "other@1"


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a smaller vocabulary, in which a digit is a token, and so is the space before it."""
    tokenizer = train_tokenizer(vocabulary=320, digits_alone=True)
    config = transformers.LlamaConfig(**GROUPED | token_ids(tokenizer) | {"max_position_embeddings": 4096})
    return save_tiny_model(tmp_path_factory.mktemp("models") / "other", config, tokenizer, seed=7)


@pytest.fixture
def corpus(settings: Settings, tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    ingest_corpus(settings, str(path))
    return path


class Words(FakeLanguageModel):
    """Has one position a word, as a real vocabulary."""

    def _positions(self, text: str) -> list[CallPosition]:
        return [one for one in super()._positions(text) if text[one.char + 1 : one.char + 2].strip()]


class Loaded:
    """Stands where models are loaded: a scripted one at `other`, and the tiny ones where they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, identity: str = OTHER) -> None:
        self.addresses: list[str] = []
        self.fake = Words(("Calculator(2 + 3)", "Calculator(400 / 1400)"), identity=OTHER)
        load = models.load_model

        def loaded(settings: Settings, model: str) -> Any:
            self.addresses.append(model)
            return self.fake if model == "other" else load(settings, model)

        def identified(model: str, *rest: Any, **named: Any) -> str:
            return identity if model == "other" else model_identity(model, *rest, **named)

        monkeypatch.setattr("toolformer_ops.runs.models.load_model", loaded)
        monkeypatch.setattr("toolformer_ops.language_model.models.model_identity", identified)


def parameters(corpus: Path, model: Path, **changes: Any) -> RunChoices:
    return RunChoices.parse(
        {"corpus": str(corpus), "model": str(model), "tools": [TOOL]} | KEEPS_ALL | changes
    )


def annotate(settings: Settings, run_id: str, choices: RunChoices) -> None:
    start_run(settings, run_id, choices)
    filter_stage(settings, run_id, TOOL)
    annotate_stage(settings, run_id, TOOL, "0/1")


CALLS = (
    "select d.text, c.position_char, c.position_token, c.call_text, l.result, l.loss_without_call, l.loss_without_result, "
    "l.loss_with_result from candidate_calls c join run_tools t using (sampling_recipe_id) "
    "join call_losses l on l.call_id = c.call_id and l.scoring_recipe_id = t.scoring_recipe_id "
    "join documents d on d.document_id = c.document_id where t.run_id = :run order by 1, 2, 4"
)


def sampled_at(
    model: LanguageModel, scorer: LanguageModel | None, text: str, **more: Any
) -> list[CallPosition]:
    choices = parameters(Path("c"), Path("m"), **CHOICES, **more).for_tool(get_tool(TOOL).spec, "")
    paragraph = Paragraph(Document.of(text), 0, 0, len(text))
    [found] = sample_paragraphs(
        model, get_tool(TOOL), choices, [paragraph], scorer.tokenize if scorer else None
    )
    lost = [(one.position, one.text, one.sample_count) for one in found.lost]
    return sorted({position for position, _, _ in lost}, key=lambda position: position.token)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_place_that_one_vocabulary_finds_is_a_token_of_the_other_at_the_same_word(
    tiny_model_dir: Path, other_dir: Path, text: str, turned: bool
) -> None:
    first, second = (LanguageModel.load(str(folder)) for folder in (tiny_model_dir, other_dir))
    proposer, scorer = (second, first) if turned else (first, second)
    alone = sampled_at(proposer, None, text)
    found = sampled_at(proposer, scorer, text)
    # By the rules of each vocabulary alone: the words that start a token in both, but for the first token.
    starts = [
        {len(text) - len(text[one.starts[token] :].lstrip()) for token in one.word_starts if token >= 1}
        for one in (proposer.tokenize(text), scorer.tokenize(text))
    ]
    word_of = {position.token: len(text) - len(text[position.char :].lstrip()) for position in found}
    assert set(word_of.values()) == starts[0] & starts[1] != set()
    assert all(scorer.tokenize(text).starts[position.token] == position.char for position in found)
    assert {position.token for position in found} != {position.token for position in alone}
    by_word = {len(text) - len(text[position.char :].lstrip()): position.probability for position in alone}
    assert all(position.probability == by_word[word_of[position.token]] for position in found)


def test_a_model_that_proposes_for_itself_samples_what_it_samples_alone(tiny_model_dir: Path) -> None:
    model = LanguageModel.load(str(tiny_model_dir))
    choices = parameters(Path("c"), Path("m"), **CHOICES).for_tool(get_tool(TOOL).spec, "")
    paragraphs = [Paragraph(Document.of(text), 0, 0, len(text)) for text in TEXTS]
    alone, through_text = (
        sample_paragraphs(model, get_tool(TOOL), choices, paragraphs, scorer)
        for scorer in (None, model.tokenize)
    )
    for one, other in zip(alone, through_text, strict=True):
        for field in ("candidates", "lost", "counts", "pruned"):
            assert getattr(one, field) == getattr(other, field)
        assert one.lost


def test_the_run_scores_by_its_own_tokens_loading_each_model_once(
    settings: Settings, corpus: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Loaded(monkeypatch)
    annotate(settings, "r", parameters(corpus, tiny_model_dir, proposer="other"))
    assert loaded.addresses == ["other", str(tiny_model_dir)]
    scorer = LanguageModel.load(str(tiny_model_dir))
    rows = run_sql(settings, CALLS, run="r")
    assert len({row.text for row in rows}) == len(TEXTS)
    for row in rows:
        text = row.text
        # Before the space of a word, where the scripted model puts it, or where the scorer's token of the
        # word begins.
        assert row.position_token == token_at(scorer.tokenize(text).starts, text, row.position_char)
        call = PlacedCall(row.position_token, parse_call(row.call_text), row.result)
        [[losses]] = scorer.score_texts([(text, [call])])
        found = (row.loss_without_call, row.loss_without_result, row.loss_with_result)
        assert found == pytest.approx(
            (losses.without_call, losses.without_result, losses.with_result), abs=1e-5
        )
    # Nothing of the scripted model's own tokens, which are counted by spaces, is left.
    assert any(row.position_token != row.text[: row.position_char + 1].count(" ") for row in rows)
    assert not audit(settings, "run", "r", sample=10).findings
    # On a file the same calls, with the same losses.
    lines = list(
        annotate_file(settings, corpus, [TOOL], str(tiny_model_dir), None, {"proposer": "other"} | KEEPS_ALL)
    )
    on_file = [(line["position_token"], line["call"], round(line["loss_with_result"], 4)) for line in lines]
    stored = [(row.position_token, row.call_text, round(row.loss_with_result, 4)) for row in rows]
    assert sorted(on_file) == sorted(stored)


def test_a_proposer_is_part_of_the_recipe_unless_it_is_the_language_model(
    settings: Settings, corpus: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loaded(monkeypatch, identity=model_identity(str(tiny_model_dir), settings=settings))
    start_run(settings, "alone", parameters(corpus, tiny_model_dir))
    start_run(settings, "itself", parameters(corpus, tiny_model_dir, proposer="other"))
    Loaded(monkeypatch)
    start_run(settings, "another", parameters(corpus, tiny_model_dir, proposer="other"))
    columns = "filter_recipe_id, sampling_recipe_id, scoring_recipe_id"
    alone, itself, another = (
        tuple(run_sql(settings, f"select {columns} from run_tools where run_id = :run", run=run)[0])
        for run in ("alone", "itself", "another")
    )
    assert alone == itself
    assert [one == other for one, other in zip(alone, another, strict=True)] == [True, False, False]


def test_a_proposer_that_changed_is_refused(
    settings: Settings, corpus: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Loaded(monkeypatch)
    start_run(settings, "another", parameters(corpus, tiny_model_dir, proposer="other"))
    loaded.fake.identity = "other@2"
    filter_stage(settings, "another", TOOL)
    with pytest.raises(ConfigurationError, match=r"with the model other@1, found other@2 at other"):
        annotate_stage(settings, "another", TOOL, "0/1")
