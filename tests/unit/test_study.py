"""A study draws honest sentences, gives each arm equally many texts and tokens, and continues where it was killed."""

import datetime
import json
import math
import operator
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from benchmarks.reference import PlainReference
from studies import calls, study
from studies.__main__ import ANSWERS, PAGE, app
from studies.answers import gather, read_answers, write_lines
from studies.arms import RULES, Rule, chosen_texts, foretells, is_right
from studies.evidence import counts_table, page_of, rules_table, tables
from studies.hours import model_parameters, study_hours
from studies.measuring import ReadCall, read_texts, writes_answer
from studies.plan import StudyPlan
from studies.real_texts import dated_paragraph, word_problem
from studies.row_figures import PICTURE, RowAnswers
from studies.sentences import SUMS, Sentence
from studies.side_by_side import Seed
from studies.statistics import Share, paired_difference, share, student
from studies.study import refuse_unreadable, run_seed
from studies.study_answers import StudyAnswers, has_minus_the_answer, has_right_call, is_called
from studies.training import arm_steps, released_text
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.evaluation.answers import first_number_is_right
from toolformer_ops.language_model.context import ReadCallStart
from toolformer_ops.language_model.losses import TOKEN_WEIGHTS
from toolformer_ops.language_model.perplexity import TextLoss
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import content_uuid
from toolformer_ops.runs.models import load_tokenization
from toolformer_ops.tools.registry import get_tool

COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def test_every_sum_has_the_right_result():
    for item in [*SUMS.training(200, 0), *SUMS.fresh(100, 0, [])]:
        fact: Any = item.fact
        sign, left, right = fact
        assert COMPUTED[sign](Fraction(left), right) == int(item.answer)
        assert all(str(number) in item.prompt for number in (left, right))


def test_a_seed_draws_the_same_sentences():
    trained = SUMS.training(200, 0)
    assert SUMS.training(40, 0) == trained[:40] != SUMS.training(40, 1)


def test_fresh_sentences_have_other_facts_of_which_half_have_new_templates():
    trained = SUMS.training(512, 0)
    fresh = SUMS.fresh(100, 0, trained)
    assert len({item.fact for item in fresh}) == len(fresh) == 100
    assert not {item.fact for item in trained} & {item.fact for item in fresh}
    assert sum(item.held_out for item in fresh) == 50
    assert not any(item.held_out for item in trained)
    for item in [*trained, *fresh]:
        assert "{" not in item.text
        assert first_number_is_right(item.text.removeprefix(item.prompt), [item.answer])


TEXT = "It had 520 and sold 187, so it has 333 left."
CALCULATOR = get_tool("Calculator")


def annotated(
    number: int, *made: tuple[str, float], only_after: bool = False, place: str = " 333"
) -> dict[str, Any]:
    """A text with calls: the result, and what it saves in nats at each token."""
    document_id = f"0b9f9c9a-0d2e-5d6d-8f9d-{number:012}"
    found = [
        {
            "input_only_after": only_after,
            "document_id": document_id,
            "call_id": f"{number}-{result}",
            "position_char": TEXT.index(place),
            "position_probability": 0.25,
            "call": "Calculator(520 - 187)" if result == "333" else "Calculator(520 + 187)",
            "result": result,
            "loss_without_call": 4.0,
            "loss_without_result": 4.5,
            "loss_with_result": 4.0 - reduction,
            "loss_reduction": reduction,
            "kept": reduction >= 0.5,
            "other_result": "12",
            "log_p": {
                "without_call": [-4.0] * 10,
                "without_result": [-4.5] * 10,
                "with_result": [reduction - 4.0] * 10,
                "with_placebo": [-4.1] * 10,
            },
        }
        for result, reduction in made
    ]
    return {"document_id": document_id, "text": TEXT, "answer": "333", "calls": found}


RECORDS = [
    annotated(0, ("707", 0.6), ("333", 2.0)),
    annotated(1, ("707", 0.9)),
    annotated(2, ("707", 0.1)),
    annotated(3, ("333", 3.0), only_after=True),
    annotated(4, ("333", 0.7)),
    annotated(5, ("333", 0.4), place=" so it"),
]


def sum_record(item: Sentence) -> dict[str, Any]:
    """A sum with the call before its answer, as `annotate` writes it."""
    fact: Any = item.fact
    operator_of_sum, left, right = fact
    scored_call = {
        **RECORDS[0]["calls"][1],
        "document_id": str(item.document.document_id),
        "call_id": str(content_uuid(item.text)),
        "position_char": len(item.prompt),
        "position_token": 3,
        "call": f"Calculator({left} {operator_of_sum} {right})",
        "result": item.answer,
        "reason": None,
        "number_format": "float32",
        "loss_with_result": -9.0,  # so that each placebo loses more
        "loss_reduction": 13.0,
        "reduction_bound": 13.0,
    }
    document_id = scored_call["document_id"]
    return {"document_id": document_id, "text": item.text, "answer": item.answer, "calls": [scored_call]}


@pytest.fixture
def one_text_is_enough(monkeypatch):
    """An arm may have a single text."""
    monkeypatch.setattr("studies.arms.FEWEST_TEXTS", 1)


@pytest.mark.usefixtures("one_text_is_enough")
def test_each_arm_has_equally_many_texts_with_one_call_that_its_rule_allows():
    arms = ("paper", "probability", "any_call", "foretold", "without_calls", "tau_0", "tau_2")
    chosen, eligible = chosen_texts(arms, RECORDS, CALCULATOR, seed=0)
    assert list(eligible.values()) == [3, 4, 5, 3, 3, 5, 1]
    assert {arm: len(texts) for arm, texts in chosen.items()} == dict.fromkeys(arms, 1)
    [(record, call)] = chosen["tau_2"]
    released = released_text("Calculator", record["document_id"], record["text"], [call])
    assert released.text == "It had 520 and sold 187, so it has [Calculator(520 - 187) -> 333] 333 left."


def test_an_arm_with_few_texts_is_left_out_of_its_seed(caplog):
    records = [annotated(number, ("707", 0.6)) for number in range(40)]
    chosen, eligible = chosen_texts(("paper", "tau_1", "any_call"), records, CALCULATOR, seed=0)
    assert eligible["tau_1"] == 0
    assert list(chosen) == ["paper", "any_call"]
    assert "the arm tau_1 is left out: 0 of 40 texts" in caplog.text


def test_a_seed_without_texts_for_any_arm_is_refused_with_a_remedy():
    with pytest.raises(
        NoResultError, match=r"for an arm, found 3 for paper, 5 for any_call among 6\. Annotate more"
    ):
        chosen_texts(("paper", "any_call"), RECORDS, CALCULATOR, seed=0)


TWO_PLACES = {
    **annotated(7, ("333", 3.0), ("333", 0.7), ("707", 0.9)),
    "document_id": "0b9f9c9a-0d2e-5d6d-8f9d-000000000007",
}
for scored_call, far_place in zip(TWO_PLACES["calls"], (" so it", " 333", " has"), strict=True):
    scored_call["position_char"] = TEXT.index(far_place)


@pytest.mark.parametrize(
    ("arm", "place", "result"),
    [
        ("paper", " so it", "333"),
        ("probability", " so it", "333"),
        ("other_result", " so it", "12"),
        ("foretold", " 333", "333"),
        ("tau_1", " so it", "333"),
    ],
)
@pytest.mark.usefixtures("one_text_is_enough")
def test_an_arm_differs_in_which_kept_call_it_takes(arm, place, result):
    chosen, _ = chosen_texts((arm,), [TWO_PLACES], CALCULATOR, seed=0)
    [(_, call)] = chosen[arm]
    assert (call["position_char"], call["result"]) == (TEXT.index(place), result)


@pytest.mark.parametrize(
    ("text", "result", "is_foretold"),
    [
        ("Of 520 cards 187 were sold, so 333 are left.", "333", True),
        ("Of 520 cards 187 were sold, so 333 are left.", "-333", False),
        ("It was 7 degrees at noon, so \u22125 at night.", "-5", True),
        ("It was 7 degrees at noon, so minus 5 at night.", "5", False),
        ("He had 7 and spent 12, so -$5 is left.", "-5", True),
    ],
)
def test_a_result_of_the_other_sign_foretells_nothing(text, result, is_foretold):
    call = {"position_char": text.index(" so"), "result": result}
    assert foretells(call, text) is is_foretold


@pytest.mark.parametrize(
    ("result", "answer", "right"),
    [("333", "333", True), ("-333", "333", False), ("\u2212333", "333", False), ("1914-1918", "1918", True)],
)
def test_a_result_of_the_other_sign_is_not_right(result, answer, right):
    assert is_right({"result": result}, answer, CALCULATOR) is right


@pytest.mark.parametrize(("loss", "texts"), [(1.0, 1), (0.9, 0)])
@pytest.mark.usefixtures("one_text_is_enough")
def test_surprising_fact_takes_a_call_before_a_number_that_the_model_does_not_expect(loss, texts):
    before_the_number = annotated(8, ("707", 0.0))
    before_the_number["calls"][0]["loss_without_call"] = loss
    before_a_word = annotated(9, ("333", 9.0), place=" left")
    _, eligible = chosen_texts(
        ("any_call", "surprising_fact"), [before_the_number, before_a_word], CALCULATOR, seed=0
    )
    assert eligible == {"any_call": 2, "surprising_fact": texts}


@pytest.mark.usefixtures("one_text_is_enough")
def test_a_right_call_has_another_place_than_its_own():
    records = [annotated(number, ("333", 0.1), ("707", 3.0)) for number in range(10)]
    chosen, _ = chosen_texts(("right_call",), records, CALCULATOR, seed=0)
    assert {call["result"] for _, call in chosen["right_call"]} == {"333"}
    places = {call["position_char"] for _, call in chosen["right_call"]}
    assert len(places) > 1
    assert TEXT.index(" 333") not in places


@pytest.mark.usefixtures("one_text_is_enough")
def test_every_arm_reads_about_as_many_tokens(tiny_gpt2_dir):
    chosen, _ = chosen_texts(("paper", "without_calls"), RECORDS, CALCULATOR, seed=0)
    plan = StudyPlan(arms=("paper", "without_calls"), steps=60)
    steps = arm_steps(Settings(), str(tiny_gpt2_dir), plan, chosen)
    tokenization = load_tokenization(Settings(), str(tiny_gpt2_dir))
    with_a_call = "It had 520 and sold 187, so it has [Calculator(520 - 187) -> 333] 333 left."
    longer = len(tokenization.ids(with_a_call)) / len(tokenization.ids(TEXT))
    assert steps["paper"] == 60
    assert steps["without_calls"] == pytest.approx(60 * longer, rel=0.1)


def test_rules_differ_in_weights_thresholds_or_terms():
    call = RECORDS[0]["calls"][1]
    assert RULES["paper"].reduction(call) == pytest.approx(2.0)
    assert (
        Rule(weights=(1.0, 0.0)).reduction({**call, "log_p": {**call["log_p"], "with_result": [-1.0, -9.0]}})
        == 3.0
    )
    low = {**call, "log_p": {**call["log_p"], "without_result": [-2.5] * 10}}
    assert RULES["paper"].reduction(low) == pytest.approx(0.5)
    assert RULES["one_loss"].reduction(low) == pytest.approx(2.0)
    assert RULES["paper"].weights == TOKEN_WEIGHTS
    better_placebo = {**call, "log_p": {**call["log_p"], "with_placebo": [-2.2] * 10}}
    assert RULES["against_placebo"].reduction(better_placebo) == pytest.approx(0.2)
    assert RULES["paper"].reduction(better_placebo) == pytest.approx(2.0)


def test_log_probabilities_are_those_of_plain_passes(tmp_path, tiny_gpt2_dir):
    choices = StudyPlan().choices(str(tiny_gpt2_dir))
    records = [sum_record(item) for item in SUMS.training(3, 0)]
    found = calls.inform(Settings(), choices, records, tmp_path)
    reference = PlainReference(tiny_gpt2_dir, load_tokenization(Settings(), str(tiny_gpt2_dir)).start_ids)

    def log_p(prefix: str, text: str, token: int) -> list[float]:
        before = [*reference.start, *(reference.encode(f"{prefix}\n") if prefix else [])]
        ids = reference.encode(text)
        table = reference.logits([*before, *ids]).log_softmax(-1)
        return [
            float(table[len(before) + place - 1, ids[place]])
            for place in range(token, min(token + 10, len(ids)))
        ]

    for record in found:
        [call] = record["calls"]
        text, token = record["text"], call["position_token"]
        empty, full = f"[{call['call']} -> ]", f"[{call['call']} -> {call['result']}]"
        assert call["log_p"]["without_call"] == pytest.approx(log_p("", text, token), abs=1e-4)
        assert call["log_p"]["without_result"] == pytest.approx(log_p(empty, text, token), abs=1e-4)
        assert call["log_p"]["with_result"] == pytest.approx(log_p(full, text, token), abs=1e-4)
        assert len(call["log_p"]["with_placebo"]) == len(call["log_p"]["with_result"])


def test_a_killed_step_continues_after_its_last_whole_group(tmp_path):
    file = tmp_path / "done.jsonl"
    records = [{"document_id": str(number)} for number in range(37)]
    whole = "".join(json.dumps(record) + "\n" for record in records[:35])
    file.write_text(whole + '{"document_id": "3', encoding="utf-8")
    groups: list[int] = []

    def work(group: Any) -> list[dict[str, Any]]:
        groups.append(len(group))
        return list(group)

    for _ in range(2):
        assert calls._continued(file, records, work, "done", 16) == records
        assert groups == [5]


def test_the_interval_of_a_mean_is_students():
    half = 4.303 * 0.1 / math.sqrt(3)  # Student's t of two degrees of freedom
    interval = student([0.4, 0.5, 0.6])
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (0.5, 0.5 - half, 0.5 + half), abs=1e-3
    )


def test_the_bootstrap_of_one_seed_is_that_of_scipy():
    draw = np.random.default_rng(1)
    first, second = (draw.random((2, 80)) < [[0.7], [0.5]]).astype(float)
    found = paired_difference([first.tolist()], [second.tolist()])
    judge = stats.bootstrap(
        (first - second,),
        np.mean,
        method="percentile",
        n_resamples=10_000,
        rng=draw,
    ).confidence_interval
    assert found.student.mean == pytest.approx(first.mean() - second.mean())
    assert (found.bootstrap.low, found.bootstrap.high) == pytest.approx((judge.low, judge.high), abs=0.02)


def test_a_difference_counts_the_seeds_alone_that_have_both_shares():
    halves = Share(parts=(np.array([1.0, 0.0]), np.array([1.0, 1.0])), wholes=(np.ones(2), np.ones(2)))
    in_one_seed = Share(parts=(np.array([1.0, 0.0]), np.zeros(2)), wholes=(np.ones(2), np.zeros(2)))
    difference = share(halves, in_one_seed)
    assert difference.student.mean == 0.0
    assert (difference.bootstrap.low, difference.bootstrap.high) == (0.0, 0.0)


def test_a_difference_of_two_seeds_that_disagree_has_wide_intervals():
    apart = paired_difference([[1.0] * 500, [0.0] * 500], [[0.0] * 500] * 2)
    assert (apart.bootstrap.low, apart.bootstrap.high) == (0.0, 1.0)
    assert apart.student.low < -5


ARMS_OF_THE_TEST = ("paper", "any_call", "without_calls")


def prepared_folder(folder: Path) -> Path:
    """A seed's folder with its calls: from the choice of calls on, since a tiny model writes none."""
    folder.mkdir(parents=True)
    records = [sum_record(item) for item in SUMS.training(30, 0)]
    for file in (calls.ANNOTATED, calls.CALLS):
        (folder / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


PLAN = StudyPlan(arms=ARMS_OF_THE_TEST, texts=30, test=4, steps=2, batch=2)


def comparable(answers: Path) -> list[dict[str, Any]]:
    """The lines of raw answers without what no two runs have alike."""
    lines = read_answers(answers)
    for line in lines:
        for name in ("annotation_seconds", "training_seconds", "writing_cpu_seconds"):
            line.pop(name, None)
    return lines


@pytest.mark.slow
def test_a_study_that_stops_while_it_trains_ends_as_one_that_did_not(tmp_path, tiny_gpt2_dir, monkeypatch):
    settings, model = Settings(), str(tiny_gpt2_dir)
    disturbed, undisturbed = (
        prepared_folder(tmp_path / name / "seed-0") for name in ("disturbed", "undisturbed")
    )
    measure = study.measure

    def until_the_last_arm(*arguments: Any) -> None:
        if arguments[3] == "without_calls":
            raise KeyboardInterrupt
        measure(*arguments)

    monkeypatch.setattr(study, "measure", until_the_last_arm)
    with pytest.raises(KeyboardInterrupt):
        run_seed(settings, model, PLAN, disturbed)
    monkeypatch.setattr(study, "measure", measure)
    for folder in (disturbed, undisturbed):
        run_seed(settings, model, PLAN, folder)
        gather(folder.parent, folder.parent)
    answers = comparable(tmp_path / "undisturbed" / "calculator.jsonl.bz2")
    assert [line["arm"] for line in answers if line["line"] == "arm"] == ["before", *ARMS_OF_THE_TEST]
    assert comparable(tmp_path / "disturbed" / "calculator.jsonl.bz2") == answers


def test_arms_that_would_shorten_measured_ones_are_refused(tmp_path, tiny_gpt2_dir):
    folder = prepared_folder(tmp_path / "seed-0")
    plan = replace(PLAN, arms=("paper",))
    plan.write(folder)
    (folder / "arm-paper.json").write_text(json.dumps({"arm": "paper", "texts": 12, "steps": 2}))
    with pytest.raises(UsageError, match="leave paper its 12 texts and 2 steps"):
        run_seed(Settings(), str(tiny_gpt2_dir), plan, folder)


def test_seeds_of_two_plans_are_not_gathered(tmp_path):
    for seed, steps in ((0, 2), (1, 3)):
        folder = prepared_folder(tmp_path / "calculator" / f"seed-{seed}")
        replace(PLAN, seed=seed, steps=steps).write(folder)
    with pytest.raises(UsageError, match="found seed 1 with another steps"):
        gather(tmp_path / "calculator", tmp_path)


def test_a_seed_that_lacks_an_arm_is_not_finished(tmp_path):
    seed = Seed(PLAN, tmp_path)
    (tmp_path / "seed.json").write_text(json.dumps({"texts": {"paper": 16, "tau_0": 16}}))
    (tmp_path / "arm-before.json").write_text("{}")
    (tmp_path / "arm-paper.json").write_text("{}")
    assert seed.lacking_arms == {"tau_0"}


def test_a_call_without_an_input_is_a_call():
    answers = [{"line": "answer", "arm": "paper", "seed": 0, "called": called} for called in ("", None)]
    arm = {"line": "arm", "arm": "paper", "seed": 0}
    study_answers = StudyAnswers([{"line": "plan", "arms": ["paper"]}, arm, *answers], [])
    assert study_answers.share("paper", is_called) == 0.5


def test_a_folder_of_another_plan_is_refused_with_the_numbers_that_differ(tmp_path):
    PLAN.write(tmp_path)
    replace(PLAN, learning_rate=1e-3).write(tmp_path)  # nothing is trained yet
    PLAN.write(tmp_path)
    (tmp_path / "arm-before.json").write_text("{}")
    replace(PLAN, arms=("paper",)).write(tmp_path)
    with pytest.raises(UsageError, match=r"one with steps 2 and not 3\. Nothing in it was changed"):
        replace(PLAN, steps=3).write(tmp_path)


def begin_study(folder: Path) -> None:
    """As `make study`."""
    arguments = ["run", "calculator", f"--out={folder}", "--model=a model that is not read"]
    CliRunner().invoke(app, arguments, catch_exceptions=False)


def begin_seed(folder: Path) -> None:
    """As a process of a study."""
    run_seed(Settings(), "a model that is not read", PLAN, folder)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/dev/shm", "is in a folder of the system"),  # noqa: S108 - nothing is written there
        ("", "is where passwords are kept"),  # the state folder
    ],
)
@pytest.mark.parametrize("begin", [begin_study, begin_seed])
def test_a_folder_whose_models_could_not_be_read_is_refused_before_anything_is_computed(begin, place, reason):
    folder = Path(place or Settings().state_dir) / "refused"
    with pytest.raises(UsageError, match=rf"found one that {reason}\. Give another --out, such as /.*"):
        begin(folder)
    assert not folder.exists()


def test_the_folder_that_the_refusal_names_is_allowed():
    refuse_unreadable(Settings(), Settings().state_dir / "models" / "studies")


def test_a_source_file_that_is_not_there_is_refused_with_where_it_comes_from(tmp_path):
    with pytest.raises(UsageError, match=r"--gsm8k: expected train.jsonl of github.com/openai"):
        StudyPlan(study="gsm8k", file=str(tmp_path / "train.jsonl"))


class CallingModel:
    """A model of characters that makes one call; each costs a tenth of a nat, those behind the call half of it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.language_model = self

    def text_losses(self, texts: list[str]) -> list[TextLoss]:
        losses = []
        for text in texts:
            before, call, behind = text.partition("-> 333]")
            token_nats = [0.1] * len(before + call) + [0.05] * len(behind)
            losses.append(TextLoss(tuple(token_nats), utf8_bytes=len(text)))
        return losses

    def tokenize(self, text: str) -> TokenizedText:
        characters = tuple(range(len(text)))
        return TokenizedText(text, ids=characters, starts=characters, word_starts=())

    def call_starts(self, texts: list[str]) -> list[list[ReadCallStart]]:
        places = (TEXT.index(" has"), TEXT.index(" 333"))
        starts = [
            ReadCallStart(place, probability, self.rank)
            for place, probability in zip(places, (0.1, 0.2), strict=True)
        ]
        return [starts for _ in texts]

    def write(self, prompts: list[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        made = MadeCall("Calculator", "520 - 187", "333", None, 1, 31, 0.0)
        text = " [Calculator(520 - 187) -> 333] a"
        return [WrittenText(prompt, text, " a", (made,), (), (), 1, "length") for prompt in prompts]


@pytest.mark.parametrize(
    ("written", "answer", "right"),
    [
        (" Bill Condon from a play", "Bill Condon", True),
        (" Bill Condonson", "Bill Condon", False),
        (" by Bill Condon", "Bill Condon", False),
        (" in 1,770.", "1770", True),
        (" April 2, 2018, the", "April 2, 2018", True),
        (" April 2, 2017, the", "April 2, 2018", False),
    ],
)
def test_an_answer_that_is_no_number_is_right_where_the_text_begins_with_it(written, answer, right):
    assert writes_answer(written, answer) is right


READING = DecodingSettings(max_new_tokens=1)


def test_a_call_while_reading_counts_for_the_words_behind_it_alone():
    model: Any = CallingModel(rank=10)
    [read] = read_texts(model, [TEXT], READING)
    assert (read.call_place, read.read_call) == (TEXT.index(" 333"), "[Calculator(520 - 187) -> 333]")
    assert read.tokens == len(TEXT)
    assert read.nats == pytest.approx(0.1 * len(TEXT))
    assert read.nats_with_call == pytest.approx(read.nats - 0.05 * len(" 333 left."))


def test_a_call_is_not_counted_where_a_token_crosses_its_border():
    call = ReadCall(sentence=0, place=2, call=" [x]")
    loss = TextLoss((1.0, 2.0, 4.0), utf8_bytes=8)
    assert call.nats_of_the_text((0, 2, 6), loss) == [1.0, 4.0]
    assert call.nats_of_the_text((0, 2, 5), loss) == []


def test_no_call_is_made_while_reading_where_its_start_is_not_among_the_ten_likeliest_tokens():
    model: Any = CallingModel(rank=11)
    [read] = read_texts(model, [TEXT], READING)
    assert read.nats_with_call is None


def test_a_model_without_calls_makes_none_while_reading():
    model: Any = CallingModel(rank=1)
    assert read_texts(model, [TEXT], None)[0].nats_with_call is None


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.", "Natalia sold 24 clips in May."),
        ("Weng earns 12/60 = $<<12/60=0.2>>0.2 per minute.", "Weng earns 0.2 per minute."),
        ("There are 3 * 20 = <<3*20=60>>60 green marbles.", "There are 60 green marbles."),
        ("It is <<3*20=60>>60 marbles.", "It is 60 marbles."),
        ("First, 2 feet * 4 feet = <<2*4=8>>8 square feet", None),  # some of the equation would be left
        ("He has 5 + 3 = <<5+3=8>>8 and 8 more.", None),  # which 8 is meant
        ("He has 8 apples.", None),
    ],
)
def test_a_word_problem_has_the_result_of_its_step_without_the_equation(step, told):
    problem = word_problem("How many?", step)
    assert (problem and problem.text) == (told and f"How many? {told}")


@pytest.mark.parametrize(
    ("text", "answer", "place"),
    [
        ("We met this Thursday in 2015 and left.", "Thursday", 11),
        ("It opens in July 2015 for all.", "2015", 16),
        ("It opens on July 30 for all.", "July 30", 11),
        ("It opens in July for all of us.", "", None),
        ("2015 was good, said the old man.", "", None),
    ],
)
def test_a_paragraph_has_the_first_fact_of_its_day_as_its_answer(text, answer, place):
    paragraph = dated_paragraph(text, datetime.date(2015, 7, 30))
    assert (paragraph.answer, paragraph.answer_place) == (answer, place)


def test_answers_are_gathered_from_a_seed_that_was_killed_while_it_wrote(tmp_path):
    folder = prepared_folder(tmp_path / "calculator" / "seed-0")
    PLAN.write(folder)
    with (folder / calls.CALLS).open("a") as file:
        file.write('{"document_id": "0b9f')
    _, calls_file = gather(folder.parent, tmp_path / "answers")
    assert len(read_answers(calls_file)) == 30


def test_the_measured_study_with_six_arms_is_estimated_at_what_its_parts_took():
    plans = [StudyPlan(seed=seed) for seed in range(10)]
    assert len(plans[0].arms) == 6
    seconds = 56 + 5 + 6 * (20 + 5)
    found = study_hours(plans, 134_515_008, processes=10)
    assert found.least == pytest.approx(seconds / 3600)
    assert str(found) == "3.5 minutes"


@pytest.mark.parametrize(
    ("parameters", "processes", "estimate"),
    [
        (134_515_008, 1, "3.5 to 35 minutes"),
        (134_515_008, 20, "3.5 minutes"),  # more processes than were measured promise nothing
        (1_345_150_080, 1, "0.59 to 5.9 hours"),
        (1_345_150_080, 10, "35 minutes"),
    ],
)
def test_an_estimate_grows_with_parameters(parameters, processes, estimate):
    plans = [StudyPlan(seed=seed) for seed in range(10)]
    assert str(study_hours(plans, parameters, processes)) == estimate


def test_parameters_are_counted_without_the_weights(tmp_path, tiny_gpt2_dir):
    from transformers import AutoModelForCausalLM

    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_gpt2_dir / name).read_bytes())
    (tmp_path / "model.safetensors").touch()
    whole = AutoModelForCausalLM.from_pretrained(tiny_gpt2_dir).num_parameters()
    assert model_parameters(Settings(), str(tmp_path)) == whole


def test_a_study_on_a_gpu_says_its_estimate_before_a_seed_begins(
    tmp_path, tiny_gpt2_dir, monkeypatch, caplog
):
    said: list[str] = []
    monkeypatch.setenv("TOOLFORMER_DEVICE", "cuda")

    def run(model: str, processes: int, seeds: list[Seed]) -> list[Seed]:
        said.extend(caplog.messages)
        return seeds

    monkeypatch.setattr("studies.__main__.run_side_by_side", run)
    with caplog.at_level("INFO", logger="studies"):
        CliRunner().invoke(app, ["run", "calculator", f"--out={tmp_path}", f"--model={tiny_gpt2_dir}"])
    assert any(message.startswith("estimate: ") and "for 10 seeds" in message for message in said)


def judged(text: int, saved: float, saved_by_another: float, *, follows: str, right: bool) -> dict[str, Any]:
    """A call as raw answers have it, whose result and another's save so many nats at each of five tokens."""
    return {
        "text": text,
        "place": 0,
        "call": "Calculator(1 + 1)",
        "foretells": right,
        "follows": follows,
        "right": right,
        "log_p": {
            "without_call": [-4.0] * 5,
            "without_result": [-3.0] * 5,
            "with_result": [saved - 3.0] * 5,
            "with_placebo": [saved_by_another - 3.0] * 5,
        },
    }


JUDGED = (
    [
        judged(0, 2.0, 0.1, follows="equal", right=True),
        judged(0, 0.6, 0.7, follows="nearly", right=False),
        judged(0, 0.4, 0.0, follows="equal", right=True),
        judged(0, 0.0, 0.9, follows="no", right=False),
    ],
    [
        judged(0, 1.0, 0.0, follows="equal", right=True),
        judged(0, 0.7, -1.0, follows="equal", right=False),
    ],
)
"""Calls of two seeds, each with one text."""


@pytest.fixture
def made_answers(tmp_path):
    """The raw answers of two seeds in which no arm was trained."""
    plan = {"line": "plan", "study": "calculator", "model": "made", "seeds": [0, 1], "texts": 1, "arms": []}
    seeds = [{"line": "seed", "seed": seed} for seed in (0, 1)]
    calls_of_seeds = [{"seed": seed, **call} for seed in (0, 1) for call in JUDGED[seed]]
    write_lines(tmp_path / "made.jsonl.bz2", [plan, *seeds])
    write_lines(tmp_path / "calls.jsonl.bz2", calls_of_seeds)
    return StudyAnswers.read(tmp_path / "made.jsonl.bz2", tmp_path / "calls.jsonl.bz2")


def cells(table: str, rule: str) -> list[str]:
    """The numbers of a rule's row, of the first table that has one."""
    row, *_ = [line for line in table.splitlines() if line.startswith(f"| `{rule}`: ")]
    return [cell.strip() for cell in row.strip("| ").split(" | ")[1:]]


def test_the_table_of_rules_has_the_numbers_that_a_hand_works_out(made_answers):
    # By L- of 3 nats, 0.5 nats keep two of the first seed's four calls, and both of the second's. A resample has each
    # seed with a chance of a half, twice: with a quarter each it is of one seed alone.
    assert cells(rules_table(made_answers), "paper") == [
        "2.0",
        "0.750 (0.000 to 1.000; 0.500 to 1.000)",  # 1 of 2, 2 of 2
        "0.750 (0.000 to 1.000; 0.500 to 1.000)",  # 1 of 2, 2 of 2
        "0.500 (0.500 to 0.500; 0.500 to 0.500)",  # 1 of 2, 1 of 2
        "0.250 (0.000 to 1.000; 0.000 to 0.500)",  # 1 of 2, 0 of 2
    ]


def test_the_loss_without_a_call_alone_keeps_what_a_call_without_a_result_explains(made_answers):
    # By L- of 4 nats every call saves at least 1 nat, and but for one every result of another text does.
    assert made_answers.rule("one_loss").kept.mean == 3.0
    assert made_answers.rule("one_loss").share("by_chance").student.mean == 0.75


def test_rules_are_compared_where_they_keep_equally_many_calls(made_answers):
    # L- is 4 nats for each call, so that the order of the calls is the paper's: the same two of each seed.
    assert cells(rules_table(made_answers), "one_loss")[:2] == cells(rules_table(made_answers), "paper")[:2]


def test_a_difference_at_equal_numbers_is_not_that_at_equal_thresholds(made_answers):
    assert made_answers.rule_less("one_loss", "paper", "precision").student.mean == 0.0
    # Of four calls of the first seed two follow, of two one; in the second seed all calls are kept by both.
    at_one_threshold = made_answers.rule_less("one_loss", "paper", "recall", as_many_as="")
    assert at_one_threshold.student.mean == (2 / 2 - 1 / 2) / 2


@pytest.mark.parametrize(
    ("written", "is_minus"),
    [(" [Calculator(1 - 6) -> -5] 5", True), (" [Calculator(6 - 1) -> 5] 5", False), (" -5", False)],
)
def test_a_call_that_gave_minus_the_answer_is_seen(written, is_minus):
    assert has_minus_the_answer({"answer": "5", "written": written}) is is_minus


@pytest.mark.parametrize(
    ("written", "is_right_call"),
    [(" [Calculator(6 - 1) -> 5] 7", True), (" [Calculator(9 + 6) -> 15] 5", False)],
)
def test_a_call_that_gave_the_answer_is_seen(written, is_right_call):
    assert has_right_call({"answer": "5", "written": written}) is is_right_call


def test_the_calls_of_two_arms_are_compared_over_the_seeds_that_have_both():
    lines: list[dict[str, Any]] = [{"line": "plan", "arms": ["paper", "any_call"]}]
    for arm, seed, with_call in (("paper", 0, 2.0), ("paper", 1, 4.5), ("any_call", 0, None)):
        lines.append({"line": "arm", "arm": arm, "seed": seed})
        lines.append({"line": "answer", "arm": arm, "seed": seed, "nats": 5.0, "nats_with_call": with_call})
    assert StudyAnswers(lines, []).saved_by_calls("paper", "any_call").student.mean == 5.0 - 2.0


@pytest.mark.usefixtures("made_answers")
def test_a_study_without_a_trained_arm_has_tables_of_rules_alone(tmp_path):
    printed = tables(tmp_path / "made.jsonl.bz2", tmp_path / "calls.jsonl.bz2")
    assert [part.partition(" |")[0] for part in printed.split("\n\n")[1:]] == ["| rule"] * 3


def test_the_table_of_counts_adds_up_the_calls_of_all_seeds(made_answers):
    # Kept: two of the first seed's four calls, both of the second's; the text goes on with three of their results.
    assert cells(counts_table(made_answers), "paper")[:2] == ["4", "3"]


def test_the_table_of_counts_compares_rules_with_as_many_calls_as_foretold(made_answers):
    # Three calls foretell: two of the first seed, one of the second. Of the two of the first that save most one is right.
    assert cells(counts_table(made_answers), "paper")[2:] == ["3", "2", "2", "1"]


def test_a_difference_of_two_rules_is_paired_by_seed(made_answers):
    # At 1 nat each seed keeps one call, whose result follows: 1 of 1 less 1 of 2, and 1 of 1 less 2 of 2.
    less = made_answers.rule_less("tau_1", "paper", "precision", as_many_as="")
    assert (less.student.mean, less.bootstrap.low, less.bootstrap.high) == (0.25, 0.0, 0.5)


@pytest.fixture(scope="module")
def page():
    """The page of the repository."""
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def prose(page):
    """The page without its tables, commands and comment."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def test_the_page_of_the_evidence_has_at_most_1500_words_of_prose(prose):
    assert len(prose.split()) <= 1500


def test_each_of_the_pages_five_conclusions_names_what_would_have_refuted_it(prose):
    conclusions = re.findall(r"^\d\. .*", prose, flags=re.MULTILINE)
    assert [conclusion.count("would have refuted") for conclusion in conclusions] == [1] * 5


def test_the_readme_says_in_three_short_sentences_what_to_expect_of_a_small_model():
    readme = Path("README.md").read_text(encoding="utf-8")
    paragraph = readme.partition("**What to expect of a small model.** ")[2].partition("\n\n")[0]
    sentences = re.split(r"(?<=\.)\s", paragraph)
    assert [len(sentence.split()) <= 25 for sentence in sentences] == [True] * 3


@pytest.mark.slow
def test_the_page_of_the_evidence_is_made_from_the_repositorys_raw_answers(page):
    assert page == page_of(ANSWERS), "run `make evidence`"


def test_the_readme_has_the_numbers_of_the_row_study():
    answers, readme = RowAnswers.read(ANSWERS), Path("README.md").read_text(encoding="utf-8")
    fresh, changed = answers.count("calls", "fresh"), answers.count("calls", "follows")
    assert f"wrote {fresh.some} of {fresh.every} unseen values right" in readme
    assert f"the new value of {changed.some} of {changed.every} changed rows" in readme


def test_the_readme_has_the_numbers_of_the_facts_of_wikipedia():
    study = StudyAnswers(read_answers(ANSWERS / "facts.jsonl.bz2"), [])
    rights = {
        arm: [right for seed in range(6) for right in study.rights(arm, seed)]
        for arm in ("probability", "before")
    }
    after, before = (rights[arm] for arm in ("probability", "before"))
    readme = Path("README.md").read_text(encoding="utf-8")
    assert f"it wrote {sum(after):.0f} of {len(after)} facts right, {sum(before):.0f} before" in readme


@pytest.mark.slow
def test_the_picture_of_the_row_study_is_made_from_the_repositorys_raw_answers():
    assert (PAGE.parent / "pictures" / PICTURE).read_text() == RowAnswers.read(ANSWERS).picture()


@pytest.mark.slow
def test_the_pages_rule_of_the_paper_is_that_of_a_plain_reckoning(page):
    followed: dict[int, list[bool]] = {seed: [] for seed in range(10)}
    for line in read_answers(ANSWERS / "calculator-calls.jsonl.bz2"):
        losses = {  # in hundredths of a fifteenth of a nat, so that all is whole
            name: -sum(
                weight * round(100 * value) for weight, value in zip(range(5, 0, -1), values, strict=False)
            )
            for name, values in line["log_p"].items()
        }
        saved = min(losses["without_call"], losses["without_result"]) - losses["with_result"]
        if saved >= 750:
            followed[line["seed"]].append(line["follows"] == "equal")
    shares = [np.mean(of_seed) for of_seed in followed.values()]
    half = stats.t.ppf(0.975, df=9) * np.std(shares, ddof=1) / math.sqrt(10)
    mean = np.mean(shares)
    row = cells(page, "paper")
    assert row[0] == f"{np.mean([len(of_seed) for of_seed in followed.values()]):.1f}"
    assert row[1].startswith(f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f}; ")
