"""A study draws honest sentences, gives each arm equally many texts, continues where it was killed, and says what its seeds say."""

import datetime
import json
import math
import operator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.reference import PlainReference
from studies import calls, study
from studies.arms import RULES, Rule, chosen_texts, rules_table
from studies.evidence import evidence, markdown, mean_interval, paired_bootstrap
from studies.sentences import DATES, FACTS, SUMS, Sentence, SentenceSource
from studies.study import StudyPlan, released_text, run_seed
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError
from toolformer_ops.language_model.losses import TOKEN_WEIGHTS
from toolformer_ops.records import content_uuid
from toolformer_ops.runs.models import load_tokenization
from toolformer_ops.tools.calendar import DAYS, write_day
from toolformer_ops.tools.registry import get_tool

COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def test_every_sum_has_the_right_result() -> None:
    for item in [*SUMS.training(200, 0), *SUMS.fresh(100, 0, [])]:
        fact: Any = item.fact
        sign, left, right = fact
        assert COMPUTED[sign](Fraction(left), right) == int(item.answer)
        assert all(str(number) in item.prompt for number in (left, right))


def test_every_dated_sentence_says_what_the_calendar_says() -> None:
    for item in [*DATES.training(200, 0), *DATES.fresh(100, 0, [])]:
        assert item.date is not None
        if item.kind == "tomorrow":
            assert item.answer == DAYS[(item.date + datetime.timedelta(days=1)).weekday()]
        elif item.kind == "days until":
            other = item.date + datetime.timedelta(days=int(item.answer))
            assert other.strftime("%B ") + str(other.day) in item.prompt
        else:
            assert item.answer in write_day(item.date)


@pytest.mark.parametrize("source", [SUMS, DATES, FACTS])
def test_a_seed_draws_the_same_sentences(source: SentenceSource) -> None:
    trained = source.training(200, 0)
    assert source.training(40, 0) == trained[:40] != source.training(40, 1)


@pytest.mark.parametrize("source", [SUMS, DATES, FACTS])
def test_fresh_sentences_have_other_facts_of_which_half_have_new_templates(source: SentenceSource) -> None:
    trained = source.training(200, 0)
    fresh = source.fresh(100, 0, trained)
    assert len({item.fact for item in fresh}) == len(fresh) == 100
    assert not {item.fact for item in trained} & {item.fact for item in fresh}
    assert sum(item.held_out for item in fresh) == 50
    assert not any(item.held_out for item in trained)
    assert {item.kind for item in fresh} == {item.kind for item in trained}
    for item in [*trained, *fresh]:
        assert "{" not in item.text
        assert item.is_right(item.text.removeprefix(item.prompt))


TEXT = "It had 520 and sold 187, so it has 333 left."
CALCULATOR = get_tool("Calculator")


def annotated(
    number: int, *made: tuple[str, float, float | None], only_after: bool = False, place: str = " 333"
) -> dict[str, Any]:
    """A text with calls: the result, what it saves in nats at each token, and of that what other results would not save."""
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
            "information": information,
            "in_place": {"without_result": 4.0, "with_result": 3.0},
            "log_p": {
                "without_call": [-4.0] * 10,
                "without_result": [-4.5] * 10,
                "with_result": [reduction - 4.0] * 10,
                "with_placebo": [-4.1] * 10,
            },
        }
        for result, reduction, information in made
    ]
    return {"document_id": document_id, "text": TEXT, "calls": found}


RECORDS = [
    annotated(0, ("707", 0.6, 0.3), ("333", 2.0, 1.5)),
    annotated(1, ("707", 0.9, 0.1)),
    annotated(2, ("707", 0.1, None)),
    annotated(3, ("333", 3.0, 2.0), only_after=True),
    annotated(4, ("333", 0.7, None)),
    annotated(5, ("333", 0.4, None), place=" so it"),
]


def dated_record(item: Sentence) -> dict[str, Any]:
    """A sentence of the Calendar with the call before its answer, as `annotate` writes it."""
    assert item.date is not None
    found = {
        **RECORDS[0]["calls"][1],
        "document_id": str(item.document.document_id),
        "call_id": str(content_uuid(item.text)),
        "position_char": len(item.prompt),
        "position_token": 3,
        "call": "Calendar()",
        "result": write_day(item.date),
        "reason": None,
        "number_format": "float32",
        "loss_with_result": -9.0,  # so that each placebo loses more
        "loss_reduction": 13.0,
        "reduction_bound": 13.0,
    }
    return {"document_id": found["document_id"], "text": item.text, "calls": [found]}


def test_each_arm_has_equally_many_texts_with_one_call_that_its_rule_allows() -> None:
    arms = ("paper", "information", "elsewhere", "any_call", "foretold", "without_calls", "tau_0", "tau_2")
    chosen, eligible = chosen_texts(arms, RECORDS, CALCULATOR, seed=0)
    assert list(eligible.values()) == [3, 1, 3, 5, 3, 3, 5, 1]
    assert {arm: len(texts) for arm, texts in chosen.items()} == dict.fromkeys(arms, 1)
    [(record, call)] = chosen["information"]
    released = released_text("Calculator", record, call)
    assert released.text == "It had 520 and sold 187, so it has [Calculator(520 - 187) -> 333] 333 left."
    with pytest.raises(NoResultError, match="none for information"):
        chosen_texts(arms, RECORDS[1:], CALCULATOR, seed=0)


def test_rules_differ_in_weights_thresholds_or_terms() -> None:
    call = RECORDS[0]["calls"][1]
    assert RULES["paper"].reduction(call) == pytest.approx(2.0)
    assert (
        Rule(weights=(1.0, 0.0)).reduction({**call, "log_p": {**call["log_p"], "with_result": [-1.0, -9.0]}})
        == 3.0
    )
    low = {**call, "log_p": {**call["log_p"], "without_result": [-2.5] * 10}}
    assert RULES["paper"].reduction(low) == pytest.approx(0.5)
    assert RULES["one_loss"].reduction(low) == pytest.approx(2.0)
    assert RULES["in_place"].reduction(call) == 1.0
    assert RULES["paper"].weights == TOKEN_WEIGHTS
    kept = {line["rule"]: (line["calls"], line["foretold"]) for line in rules_table(RECORDS, CALCULATOR)}
    assert [kept[rule] for rule in ("paper", "tau_2", "tau_0")] == [(4, 2), (1, 1), (6, 3)]


def test_log_probabilities_beside_the_losses_in_place_are_those_of_plain_passes(
    tmp_path: Path, tiny_gpt2_dir: Path
) -> None:
    choices = StudyPlan(tool="Calendar").choices(str(tiny_gpt2_dir))
    records = [dated_record(item) for item in DATES.training(3, 0)]
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
        empty, full = "[Calendar() -> ]", f"[Calendar() -> {call['result']}]"
        assert call["log_p"]["without_call"] == pytest.approx(log_p("", text, token), abs=1e-4)
        assert call["log_p"]["without_result"] == pytest.approx(log_p(empty, text, token), abs=1e-4)
        assert call["log_p"]["with_result"] == pytest.approx(log_p(full, text, token), abs=1e-4)
        assert len(call["log_p"]["with_placebo"]) == len(call["log_p"]["with_result"])
        place = reference.tokenizer(text, return_offsets_mapping=True)["offset_mapping"][token][0]
        woven = f"{text[:place]} {full}{text[place:]}"
        later = len(reference.encode(woven)) - (len(reference.encode(text)) - token)
        expected = -math.fsum(w * p for w, p in zip(TOKEN_WEIGHTS, log_p("", woven, later), strict=False))
        assert call["in_place"]["with_result"] == pytest.approx(expected, abs=1e-4)


def test_a_killed_step_continues_after_its_last_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "done.jsonl"
    records = [{"document_id": str(number)} for number in range(37)]
    whole = "".join(json.dumps(record) + "\n" for record in records[:35])
    file.write_text(whole + '{"document_id": "3', encoding="utf-8")
    groups: list[int] = []

    def work(group: Any) -> list[dict[str, Any]]:
        groups.append(len(group))
        return list(group)

    for _ in range(2):
        assert calls._continued(file, records, work, "done") == records
        assert groups == [5]


def test_intervals_are_those_of_the_textbook() -> None:
    half = 4.303 * 0.1 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert mean_interval([0.4, 0.5, 0.6]) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-3)
    draw = np.random.default_rng(1)
    first, second = draw.random((2, 80)) < [[0.7], [0.5]]
    difference, low, high = paired_bootstrap([first.tolist()], [second.tolist()])
    judge = stats.bootstrap(
        (first.astype(float) - second.astype(float),),
        np.mean,
        method="percentile",
        n_resamples=10_000,
        rng=draw,
    ).confidence_interval
    assert difference == pytest.approx(first.mean() - second.mean())
    assert (low, high) == pytest.approx((judge.low, judge.high), abs=0.02)
    apart = paired_bootstrap([[True] * 500, [False] * 500], [[False] * 500] * 2)
    assert apart == (0.5, 0.0, 1.0)


def test_a_study_that_stops_while_it_trains_ends_as_one_that_did_not(
    tmp_path: Path, tiny_gpt2_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the choice of calls on: a tiny model writes none."""
    arms = ("paper", "paper_masked", "without_calls")
    plan = StudyPlan(tool="Calendar", arms=arms, proposals=True, texts=16, test=4, steps=2, batch=2)
    records = [dated_record(item) for item in DATES.training(16, 0)]

    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
        for file in (calls.ANNOTATED, calls.CALLS):
            (tmp_path / name / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    measure = study.measure

    def until_the_second_arm(settings: Settings, model: str, plan: StudyPlan, arm: str, folder: Path) -> Any:
        if arm == "paper_masked":
            raise KeyboardInterrupt
        return measure(settings, model, plan, arm, folder)

    monkeypatch.setattr(study, "measure", until_the_second_arm)
    with pytest.raises(KeyboardInterrupt):
        run_seed(Settings(), str(tiny_gpt2_dir), plan, tmp_path / "disturbed")
    monkeypatch.setattr(study, "measure", measure)
    found = {}
    for name in ("disturbed", "undisturbed"):
        seed = run_seed(Settings(), str(tiny_gpt2_dir), plan, tmp_path / name)
        found[name] = evidence([seed, seed])
        for line in found[name]["arms"]:
            assert ("proposed" in line) == line["arm"].startswith("paper")
            for counts in line.get("proposed", {}).values():
                assert counts["samples"] > 0
                counts["cpu_seconds"] = 1.0  # no two runs take as long
    assert found["disturbed"] == found["undisturbed"]
    seen = found["undisturbed"]
    assert [(line["arm"], len(line["by_seed"])) for line in seen["arms"]] == [
        (arm, 2) for arm in ("before", *arms)
    ]
    assert markdown(seen).count("\n| ") == 1 + len(arms) + 1 + 1 + len(RULES) + 1 + 4
