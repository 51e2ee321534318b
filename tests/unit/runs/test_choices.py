"""What a run accepts, and what it says about what it does not."""

import json
from dataclasses import replace

import pytest

from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.losses import PROBABILITY_PRUNE_BELOW, PROBABILITY_THRESHOLD
from toolformer_ops.runs.choices import RunChoices, SamplingChoices, typed_values
from toolformer_ops.runs.presets import PRESETS
from toolformer_ops.tools.base import ToolSpec

LEAST = {"corpus": "posts.jsonl", "model": "models/m"}
SPEC = ToolSpec(name="T", purpose="p", prompt_file="f")


def test_a_wrong_value_is_refused_by_name():
    for change, named in (
        ({"corpus": ""}, "corpus"),
        ({"keep_thresholds": {"QA": -1}}, "keep_thresholds.QA"),
        ({"sampling_threshold": 1.0}, "sampling_threshold"),
        ({"call_prefix": "half"}, "call_prefix"),
        ({"max_position": 5}, "max_position"),
        ({"tools": ["QA", "qa"]}, "each tool once"),
        ({"keep_threshold_MT": 0.75, "keep_thresholds": {"mt": 2}}, "both give a threshold; leave one out"),
        ({"keep_threshold_MT": 21}, r"keep_thresholds\.MT: expected 20 or less"),
        ({"preset": "large_model"}, "preset"),
    ):
        with pytest.raises(UsageError, match=named):
            RunChoices.parse({**LEAST, **change})


@pytest.mark.parametrize(
    ("text", "named"), [("{", "a JSON object, found '{'"), ("[1]", "found list"), ('{"seed": -1}', "seed")]
)
def test_what_is_no_json_object_of_choices_is_refused(text, named):
    with pytest.raises(UsageError, match=named):
        RunChoices.parse_json(text)


def test_tools_are_taken_in_any_capitals_also_in_fields_of_thresholds():
    fields = {"tools": ["calculator", "mt"], "keep_threshold_calculator": 0.75, "keep_thresholds": {"mt": 2}}
    chosen = RunChoices.parse({**LEAST, **fields, "keep_threshold_QA": None})
    assert (chosen.tools, chosen.keep_thresholds) == (("Calculator", "MT"), {"Calculator": 0.75, "MT": 2.0})


def test_a_tool_is_looked_up_only_when_the_run_starts():
    assert RunChoices.parse({**LEAST, "tools": ["Abacus"]}).tools == (
        "Abacus",
    )  # looked up when the run starts


def test_the_thresholds_of_a_run_are_of_its_tools_at_or_above_what_is_pruned():
    chosen = RunChoices.parse({**LEAST, "tools": ["MT", "QA"], "keep_threshold_QA": 2})
    assert chosen.kept_from() == {"MT": 0.5, "QA": 2.0}
    with pytest.raises(UsageError, match=r"expected chosen tools, found QA\. Choose the tool"):
        RunChoices.parse({**LEAST, "tools": ["MT"], "keep_threshold_QA": 2}).kept_from()
    with pytest.raises(UsageError, match=r"found 0\.25 for MT .*Set prune_below to 0.25"):
        RunChoices.parse({**LEAST, "keep_threshold_MT": 0.25}).kept_from()
    with pytest.raises(UsageError, match=r"found 0\.5 for Calculator \(the usual one\)"):
        RunChoices.parse({**LEAST, "prune_below": 1.5}).kept_from()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_only_what_is_empty(preset):
    plain = RunChoices.parse(LEAST)
    filled = RunChoices.parse({**LEAST, "preset": preset, "temperature": None})
    assert filled == plain.model_copy(update={**PRESETS[preset], "preset": preset})
    chosen = RunChoices.parse_json(json.dumps({**LEAST, "preset": preset, "temperature": 1.0, "seed": None}))
    assert (chosen.temperature, chosen.seed) == (1.0, 0)
    for choices in (filled, chosen):  # as a stage reads them again
        assert RunChoices.parse_json(choices.model_dump_json()) == choices


def test_a_switch_is_never_empty_to_a_preset():
    assert not RunChoices.parse(
        {**LEAST, "preset": "only_look", "finetune": True}
    ).finetune  # a switch is never empty


def test_a_preview_samples_as_a_small_model_does():
    preview, small = (RunChoices.parse({**LEAST, "preset": preset}) for preset in ("preview", "small_model"))
    assert preview.part(SamplingChoices) == small.part(SamplingChoices)
    assert not preview.finetune


def test_only_to_look_asks_where_a_small_model_does_with_the_papers_other_numbers():
    only_look, small, paper = (
        RunChoices.parse({**LEAST, "preset": preset}) for preset in ("only_look", "small_model", "paper")
    )
    of_small = ("sampling_threshold", "call_prefix", "keep_rule", "prune_below")
    where = {name: getattr(small, name) for name in of_small}
    assert only_look.part(SamplingChoices) == paper.part(SamplingChoices).model_copy(update=where)


def test_no_placebos_are_no_contradiction_to_a_preset():
    chosen = RunChoices.parse({**LEAST, "preset": "small_model", "placebos": 0})
    assert chosen.keep_rule == "paper"
    with pytest.raises(UsageError, match="keep_rule probability needs placebos of at least 1"):
        RunChoices.parse({**LEAST, "preset": "small_model", "placebos": 0, "keep_rule": "probability"})


@pytest.mark.parametrize(("preset", "keep_rule"), [("paper", "probability"), ("small_model", "paper")])
def test_a_keep_rule_that_is_not_the_presets_brings_its_own_prune_below(preset, keep_rule):
    chosen = RunChoices.parse({**LEAST, "preset": preset, "keep_rule": keep_rule})
    assert chosen.prune_below == {"paper": 0.5, "probability": PROBABILITY_PRUNE_BELOW}[keep_rule]


def test_by_the_rule_probability_all_tools_have_one_threshold():
    chosen = RunChoices.parse({**LEAST, "tools": ["Calculator", "QA"], "keep_rule": "probability"})
    assert chosen.kept_from() == {"Calculator": PROBABILITY_THRESHOLD, "QA": PROBABILITY_THRESHOLD}


@pytest.mark.parametrize("nats", [{"keep_thresholds": {"Calculator": 5.0}}, {"prune_below": 4.7}])
def test_a_threshold_that_no_call_reaches_is_refused(nats):
    with pytest.raises(UsageError, match=r"must be at most 4\.6 with keep_rule probability"):
        RunChoices.parse({**LEAST, "keep_rule": "probability", **nats})


def test_a_tools_number_fills_what_was_not_chosen():
    spec = replace(SPEC, sampling_threshold=0.25, max_positions=9, samples_per_position=8)
    chosen = RunChoices.parse({**LEAST, "max_positions": 2, "seed": 3}).for_tool(spec, "Output: [T(x)]")
    assert (chosen.max_positions, chosen.samples_per_position, chosen.sampling_threshold) == (2, 8, 0.25)
    assert (chosen.seed, chosen.prune_below, chosen.max_call_tokens) == (3, 0.5, 32)


NAN = "\u5357\u4eac\u5e02"  # nine bytes


def test_a_call_may_have_as_many_tokens_as_the_longest_of_the_prompt_has_bytes():
    for prompt, budget in (
        ("Output: [T(a)] b", 32),  # the least
        (
            '[T(city: "Paris", time: "09:00", zone: "Asia/Tokyo")] and [T(a)]',
            52,
        ),  # the longest, in bytes with its "]"
        (f"[MT({NAN * 9})] [T({NAN * 4})]", 40),  # of this tool alone
        (f"[T({'a' * 400})]", 256),  # the most
    ):
        assert RunChoices.parse(LEAST).for_tool(SPEC, prompt).max_call_tokens == budget
        assert RunChoices.parse({**LEAST, "max_call_tokens": 9}).for_tool(SPEC, prompt).max_call_tokens == 9


def test_what_is_typed_stands_over_the_preset_for_one_machine():
    assert typed_values('{"seed": 1}') == {"preset": "small_model", "seed": 1}


def test_another_preset_can_be_typed():
    assert typed_values('{"preset": "paper"}') == {"preset": "paper"}


def test_suites_that_read_files_need_their_folder_when_the_run_starts():
    with pytest.raises(UsageError, match=r"evaluation_data must name the folder .* lama"):
        RunChoices.parse({**LEAST, "evaluation_suites": ["temporal", "lama"]})
    assert RunChoices.parse({**LEAST, "evaluation_suites": ["lama"], "evaluation_data": "data"})
    assert RunChoices.parse({**LEAST, "evaluation_suites": ["temporal"]}).evaluation_suites == ("temporal",)


def test_zero_tokens_of_scoring_context_are_all_of_the_text_whatever_the_preset_says():
    values = {"corpus": "c", "model": "m", "preset": "small_model", "scoring_context_tokens": 0}
    assert RunChoices.parse(values).scoring_context_tokens is None


def test_the_proposer_model_is_the_default():
    assert RunChoices.parse({**LEAST, "proposer": "model"}) == RunChoices.parse(LEAST)


def test_chains_need_a_model_that_proposes():
    with pytest.raises(UsageError, match="chains needs a model as proposer"):
        RunChoices.parse({**LEAST, "proposer": "tool", "chains": True})


def test_a_registered_run_is_read_without_what_only_an_earlier_version_let_it_choose():
    parameters = {"corpus": "c", "model": "m", "seed": 3, "finetune_warmup": 0.2}
    assert RunChoices.of_run(parameters) == RunChoices.parse({"corpus": "c", "model": "m", "seed": 3})


def test_a_change_of_a_registered_run_that_cannot_be_chosen_is_refused():
    with pytest.raises(UsageError, match="finetune_warmup"):
        RunChoices.of_run({"corpus": "c", "model": "m"}, finetune_warmup=0.2)
