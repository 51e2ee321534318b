"""What the seeds of a study say together: means over seeds with their intervals, and differences of arms that are paired.

A mean over seeds has Student's 95 % interval: it says how another seed would come out. A difference of two
arms is that of the same sentences of the same seeds; its interval is a percentile bootstrap that draws seeds
with replacement, and within each the sentences (a cluster bootstrap in two stages; Davison and Hinkley 1997,
section 3.8). With few seeds both are wide, as they should be.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from studies.study import BEFORE

RESAMPLES = 10_000
COMPARED_WITH = "paper"


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and Student's 95 % interval of it; the interval of one value is all numbers."""
    from scipy.stats import ttest_1samp

    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    if len(set(values)) == 1:
        return mean, mean, mean
    found = ttest_1samp(values, mean).confidence_interval(0.95)
    return mean, float(found.low), float(found.high)


def paired_bootstrap(
    first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]]
) -> tuple[float, float, float]:
    """First minus second share of right answers, mean over seeds, with its 95 % interval.

    Both: by seed, by sentence.

    Raises:
        ValueError: they are not of the same seeds and sentences.
    """
    import numpy as np

    differences = [
        np.array([int(a) - int(b) for a, b in zip(of_first, of_second, strict=True)])
        for of_first, of_second in zip(first, second, strict=True)
    ]
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, len(differences), (RESAMPLES, len(differences)))
    # A resample of a seed's sentences: its mean, drawn anew for each time that the seed is drawn.
    means = np.empty(seeds.shape)
    for number, of_seed in enumerate(differences):
        drawn = seeds == number
        places = generator.integers(0, len(of_seed), (int(drawn.sum()), len(of_seed)))
        means[drawn] = of_seed[places].mean(axis=1)
    low, high = np.percentile(means.mean(axis=1), [2.5, 97.5])
    return float(np.mean([of_seed.mean() for of_seed in differences])), float(low), float(high)


def evidence(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arms and rules of all seeds, each of which `study.run_seed` returned.

    Raises:
        ValueError: the seeds do not have the same arms.
    """
    by_arm = {arms[0]["arm"]: list(arms) for arms in zip(*(found["arms"] for found in seeds), strict=True)}
    table = []
    for name, of_arm in by_arm.items():
        share, low, high = mean_interval([sum(found["right"]) / len(found["right"]) for found in of_arm])
        line = {
            "arm": name,
            "right": share,
            "interval": [max(0.0, low), min(1.0, high)],
            "by_seed": [sum(found["right"]) for found in of_arm],
            "of": len(of_arm[0]["right"]),
            "right_held_out": _mean(found["right_held_out"] / max(1, found["held_out"]) for found in of_arm),
            "called": _mean(found["called"] / len(found["right"]) for found in of_arm),
            "by_kind": {
                kind: [sum(found["by_kind"].get(kind, [0, 0])[part] for found in of_arm) for part in (0, 1)]
                for kind in sorted({kind for found in of_arm for kind in found["by_kind"]})
            },
            "tokens_seen": _mean(found["tokens_seen"] for found in of_arm),
            "perplexity": _mean(found["perplexity"] for found in of_arm),
        }
        if name not in (COMPARED_WITH, BEFORE) and COMPARED_WITH in by_arm:
            rights = [[found["right"] for found in by_arm[arm]] for arm in (name, COMPARED_WITH)]
            line["less_paper"] = paired_bootstrap(*rights)
        if "proposed" in of_arm[0]:
            line["proposed"] = {
                end: {
                    count: math.fsum(found["proposed"][end][count] for found in of_arm)
                    for count in of_arm[0]["proposed"][end]
                }
                for end in of_arm[0]["proposed"]
            }
        table.append(line)
    rules = [
        {
            "rule": of_rule[0]["rule"],
            **{
                name: None if of_rule[0][name] is None else sum(found[name] for found in of_rule)
                for name in ("calls", "texts", "foretold", "also_paper", "by_chance", "of")
            },
        }
        for of_rule in zip(*(found["rules"] for found in seeds), strict=True)
    ]
    return {
        "tool": seeds[0]["plan"]["tool"],
        "seeds": [found["plan"]["seed"] for found in seeds],
        "plan": seeds[0]["plan"],
        "examples_an_arm": [found["examples_an_arm"] for found in seeds],
        "arms": table,
        "rules": rules,
        "as_good_as_the_rule": [
            line["arm"] for line in table
            if line["arm"] in ("elsewhere", "any_call", "foretold", "without_calls") and line["less_paper"][2] >= 0
        ],
    }  # fmt: skip


def _mean(values: Any) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of the evidence, for a page and for the terminal."""
    examples, arms = found["examples_an_arm"], found["arms"]
    kinds = list(arms[0]["by_kind"])
    head = [
        "trained on",
        "right",
        "95 %",
        "less `paper`",
        "95 %",
        "new templates",
        "calls",
        *kinds,
        "tokens seen",
        "perplexity",
    ]
    lines = [
        f"{found['tool']}: seeds {', '.join(map(str, found['seeds']))}, each with {arms[0]['of']} fresh sentences; "
        f"{min(examples)} to {max(examples)} texts an arm, with one call each.",
        "",
        _row(head),
        "|---" * len(head) + "|",
    ]
    for arm in arms:
        low, high = arm["interval"]
        difference, least, most = arm.get("less_paper", (None, None, None))
        lines.append(
            _row(
                [
                    arm["arm"],
                    f"{arm['right']:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    "" if difference is None else f"{difference:+.3f}",
                    "" if difference is None else f"{least:+.3f} to {most:+.3f}",
                    f"{arm['right_held_out']:.3f}",
                    f"{arm['called']:.3f}",
                    *(f"{right} of {count}" for right, count in arm["by_kind"].values()),
                    f"{arm['tokens_seen']:,.0f}",
                    f"{arm['perplexity']:.2f}",
                ]
            )
        )
    if proposed := [
        (arm["arm"], end, counts) for arm in arms for end, counts in arm.get("proposed", {}).items()
    ]:
        head = [
            "proposed by",
            "samples end at",
            "samples",
            "with a result that the model writes",
            "calls",
            "calls a CPU second",
        ]
        lines += ["", _row(head), "|---" * len(head) + "|"]
    for arm_name, end, counts in proposed:
        numbers = [f"{counts[name]:,.0f}" for name in ("samples", "own_results", "calls")]
        lines.append(
            _row(
                [
                    arm_name,
                    f"the {end}",
                    *numbers,
                    f"{counts['calls'] / max(counts['cpu_seconds'], 0.01):.2f}",
                ]
            )
        )
    columns = {
        "rule": "rule",
        "calls": "calls kept",
        "texts": "texts",
        "foretold": "foretell what follows",
        "also_paper": "also kept by the paper's",
        "by_chance": "kept by chance",
    }
    lines += [
        "",
        f"Of {found['rules'][0]['of']} calls that can be released:",
        "",
        _row(list(columns.values())),
    ]
    lines.append("|---" * len(columns) + "|")
    lines += [
        _row(["" if rule[name] is None else str(rule[name]) for name in columns]) for rule in found["rules"]
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
