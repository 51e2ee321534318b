"""What the seeds of a study say together: the tables of docs/evidence.md, computed from the raw answers in `answers/`.

The page is `evidence.md.jinja`, in which each table and each number of a sentence is named by study and arm;
`python -m studies evidence` fills it, so that whoever doubts a number computes it.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from studies.answers import read_answers
from studies.arms import RULES
from studies.judging import CALLS_AN_ARM, JudgedCalls
from studies.keep_rules import (
    CANDIDATES,
    CHOSEN,
    PAPERS_RULE,
    SHOWN_RULES,
    KeepRule,
    LabelledAnswers,
    pooled,
    threshold_table,
)
from studies.measuring import BEFORE
from studies.page_tables import Column, table_of
from studies.row_figures import PICTURE, RowAnswers
from studies.statistics import Interval
from studies.study_answers import (
    COMPARED_WITH,
    WITHOUT_A_MODEL,
    RuleFigures,
    StudyAnswers,
    has_read_call,
    has_right_call,
    is_called,
)
from toolformer_ops.run_page.judgements import VERDICTS, Rate, cohens_kappa

TEMPLATE = Path(__file__).with_name("evidence.md.jinja")
MADE_BY = (
    "<!-- Made by `python -m studies evidence` from studies/evidence.md.jinja and studies/answers. -->\n"
)


def arms_table(study: StudyAnswers) -> str:
    """By arm: right answers with Student's interval, and their difference from those of the plan's first arm."""
    first = study.plan["arms"][0]

    def less(arm: str) -> str:
        if arm in (BEFORE, first) or first not in study.arms:
            return ""
        return _signed(study.right_less(arm, first).student)

    def right(arm: str, *, held_out: bool) -> str:
        share = study.right(arm, held_out=held_out, reads_sign=True).mean
        return "" if math.isnan(share) else f"{share:.3f}"

    columns = [
        Column("trained on", lambda arm: f"`{arm}`"),
        Column("seeds", lambda arm: str(len(study.seeds(arm)))),
        Column("texts a seed", lambda arm: "" if arm == BEFORE else f"{study.texts(arm) / len(study.seeds(arm)):.0f}"),
        Column("right, sign not read", lambda arm: f"{study.right(arm).mean:.3f}"),
        Column("right (95 %)", lambda arm: str(study.right(arm, reads_sign=True))),
        Column("in templates of the training", lambda arm: right(arm, held_out=False)),
        Column("in held-out templates", lambda arm: right(arm, held_out=True)),
        Column(f"less `{first}` (Student)", less),
        Column("calls", lambda arm: f"{study.share(arm, is_called):.2f}"),
        Column("perplexity of plain text", lambda arm: f"{study.arm_mean(arm, 'perplexity'):.2f}"),
    ]  # fmt: skip
    return table_of(columns, study.arms)


def reading_table(study: StudyAnswers) -> str:
    """By arm: the loss of fresh sentences without calls and with those that the model makes as it reads."""

    def calling(arm: str, cell: Callable[[str], str]) -> str:
        return cell(arm) if study.share(arm, has_read_call) else ""

    columns = [
        Column("trained on", lambda arm: f"`{arm}`"),
        Column("nats a token, no calls", lambda arm: f"{study.loss(arm).mean:.4f}"),
        Column("with calls", lambda arm: calling(arm, lambda arm: f"{study.loss(arm, with_calls=True).mean:.4f}")),
        Column("texts with a call", lambda arm: calling(arm, lambda arm: f"{study.share(arm, has_read_call):.2f}")),
        Column(
            "nats that calls save a text (Student)",
            lambda arm: calling(arm, lambda arm: _signed(study.saved_by_calls(arm).student)),
        ),
        Column(
            "nats a text less `before`, with calls if it makes them (Student)",
            lambda arm: "" if arm == BEFORE else _signed(study.loss_less(arm, BEFORE, with_calls=True).student),
        ),
    ]  # fmt: skip
    return table_of(columns, study.arms)


DIFFERENCES: Mapping[str, str] = {
    "any_call": "any call, no loss",
    "foretold": "the next number or name is in the result, not in the text before, no loss",
    "paper": "five tokens, falling weights, the smaller of two losses",
    "one_token": "the first token alone",
    "two_tokens": "two tokens, falling weights",
    "three_tokens": "three tokens, falling weights",
    "five_equal": "five tokens, equal weights",
    "ten": "ten tokens, falling weights",
    "ten_equal": "ten tokens, equal weights",
    "tau_0": "at least 0 nats",
    "tau_0.25": "at least 0.25 nats",
    "tau_0.5": "at least 0.5 nats",
    "tau_1": "at least 1 nat",
    "tau_2": "at least 2 nats",
    "one_loss": "L- is the loss without a call alone",
    "against_placebo": "L- is at most the loss with another text's result, too",
    "probability": "seven probabilities, their geometric mean, the largest of three without the result",
}
"""By rule, in what it differs from the paper's."""


LOWER_THRESHOLDS = ("tau_0", "tau_0.25", "tau_0.5", "tau_1", "tau_2")
"""Rules that keep other numbers of calls than the paper's by their nature."""


def _compares_by_chance(rule: str) -> bool:
    """Whether it can be said which kept calls another's result would keep, too.

    Not of a rule without a loss. A rule with another's result in L- would need a third result to compare that with.
    """
    return rule not in WITHOUT_A_MODEL and not RULES[rule].against_placebo


def _figures_table(rules: Sequence[str], figures_of: Callable[[str], RuleFigures]) -> str:
    columns = [
        Column("rule", lambda rule: f"`{rule}`: {DIFFERENCES[rule]}"),
        Column("calls a seed", lambda rule: f"{figures_of(rule).kept.mean:.1f}"),
        Column("the text goes on with the result", lambda rule: str(figures_of(rule).share("precision"))),
        Column("of all such calls kept", lambda rule: str(figures_of(rule).share("recall"))),
        Column("the answer is in the result", lambda rule: str(figures_of(rule).share("right"))),
        Column(
            "kept with another's result, too",
            lambda rule: str(figures_of(rule).share("by_chance")) if _compares_by_chance(rule) else "",
        ),
    ]
    return table_of(columns, rules)


def rules_table(study: StudyAnswers) -> str:
    """By keep rule that keeps as many calls a seed as the paper's: shares of them with both intervals."""
    rules = [rule for rule in DIFFERENCES if rule not in LOWER_THRESHOLDS]
    return _figures_table(rules, lambda rule: study.rule(rule, COMPARED_WITH))


def thresholds_table(study: StudyAnswers) -> str:
    """By threshold of the paper's rule: calls a seed, and shares of them with both intervals."""
    return _figures_table(LOWER_THRESHOLDS, study.rule)


def counts_table(study: StudyAnswers) -> str:
    """By keep rule: how many calls of all seeds it keeps, and what they are; for studies in which a seed keeps few.

    At its own threshold, and where it keeps in each seed as many as `foretold`.
    """

    def total(rule: str, name: str) -> str:
        return str(study.rule(rule).total(name))

    def as_many(rule: str, name: str) -> str:
        if rule == "any_call":
            return ""
        return str(study.rule(rule, "foretold").total(name))

    columns = [
        Column("rule", lambda rule: f"`{rule}`: {DIFFERENCES[rule]}"),
        Column("calls", lambda rule: total(rule, "kept")),
        Column("the text goes on with the result", lambda rule: total(rule, "precision")),
        Column("calls, as many as `foretold`", lambda rule: as_many(rule, "kept")),
        Column("the text goes on with the result", lambda rule: as_many(rule, "precision")),
        Column("the answer is in the result", lambda rule: as_many(rule, "right")),
        Column(
            "kept with another's result, too",
            lambda rule: as_many(rule, "by_chance") if _compares_by_chance(rule) else "",
        ),
    ]
    return table_of(columns, [rule for rule in DIFFERENCES if rule not in LOWER_THRESHOLDS])


def judged_table(judged: JudgedCalls) -> str:
    """By arm: calls that were read, and the share that each reading calls useful, with Wilson's interval."""

    def rate(arm: str, reading: int) -> Rate:
        counts = Counter(judged.verdicts(arm, reading))
        return Rate(*(counts[verdict] for verdict in VERDICTS))

    def useful(arm: str, reading: int) -> str:
        rate_of_arm = rate(arm, reading)
        if rate_of_arm.share is None:
            return ""
        interval = rate_of_arm.interval
        return f"{rate_of_arm.share:.2f} ({interval.low:.2f} to {interval.high:.2f})"

    columns = [
        Column("arm", lambda arm: f"`{arm}`"),
        Column("calls", lambda arm: str(len(judged.verdicts(arm, 1)))),
        Column("useful, first reading", lambda arm: useful(arm, 1)),
        Column("second reading", lambda arm: useful(arm, 2)),
        Column("useless", lambda arm: f"{rate(arm, 1).useless}, {rate(arm, 2).useless}"),
        Column("wrong", lambda arm: f"{rate(arm, 1).wrong}, {rate(arm, 2).wrong}"),
    ]
    return table_of(columns, judged.arms)


TABLES: Mapping[str, Callable[[StudyAnswers], str]] = {
    "arms": arms_table,
    "reading": reading_table,
    "rules": rules_table,
    "thresholds": thresholds_table,
    "counts": counts_table,
}
"""By name, what makes a table of a study's answers."""
TABLES_OF_ARMS = ("arms", "reading")
"""The others are of calls."""


def tables(answers: Path, calls: Path | None) -> str:
    """All tables of a study, for the terminal; those of rules only where there are calls."""
    study = StudyAnswers(read_answers(answers), []) if calls is None else StudyAnswers.read(answers, calls)
    plan = study.plan
    head = f"{plan['study']}: seeds {', '.join(map(str, plan['seeds']))}, model {plan['model']}"
    names = [name for name in TABLES if (study.arms if name in TABLES_OF_ARMS else calls)]
    return "\n\n".join([head, *(TABLES[name](study) for name in names)])


def write_page(page: Path, answers: Path) -> None:
    """Write the page of the evidence, and its picture beside it."""
    page.write_text(page_of(answers), encoding="utf-8")
    picture = page.parent / "pictures" / PICTURE
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(RowAnswers.read(answers).picture(), encoding="utf-8")


def page_of(answers: Path, template: Path = TEMPLATE) -> str:
    """The page of the evidence, its tables and numbers computed from the raw answers of a folder.

    Raises:
        UsageError: the page names a study or an arm that the answers lack.
    """
    from jinja2 import Environment, StrictUndefined

    @functools.cache
    def study(name: str) -> StudyAnswers:
        return StudyAnswers.read(answers / f"{name}.jsonl.bz2", answers / f"{name}-calls.jsonl.bz2")

    @functools.cache
    def judged(name: str) -> JudgedCalls:
        return JudgedCalls.read(answers / f"{name}-judged.jsonl")

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML
    environment.filters["signed"] = _signed
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        study=study,
        table=lambda name, kind: TABLES[kind](study(name)),
        texts=lambda name: len(study(name).seed_lines) * study(name).plan["texts"],
        rows=RowAnswers.read(answers),
        trained=lambda name: StudyAnswers(read_answers(answers / f"{name}.jsonl.bz2"), []),
        is_called=is_called,
        has_right_call=has_right_call,
        calls_an_arm=CALLS_AN_ARM,
        judged_table=lambda name: judged_table(judged(name)),
        labelled=functools.cache(functools.partial(LabelledAnswers.read, answers)),
        papers_rule=PAPERS_RULE,
        chosen=CHOSEN,
        keep_rule=KeepRule,
        candidates=CANDIDATES,
        shown_rules=SHOWN_RULES,
        threshold_table=threshold_table,
        pooled=pooled,
        kappa=lambda name: cohens_kappa(judged(name).pairs()),
    )
    return MADE_BY + text


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
