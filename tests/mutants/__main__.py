"""Changes one place of a module at a time and runs its tests: what stays green is a mistake that no test would find.

`python -m tests.mutants FOLDER [MODULE...]`, with the folder of cosmic-ray's programs, as `make mutants`
starts it. Works in a copy of the checkout. A mutant that computes the same is listed in `equivalent.toml`
with the reason; any other that survives is printed, and the status is 1. The processes of tools of files
import the installed checkout and not the copy: a mutant of what runs there is tried in place, by hand.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from toolformer_ops.config import REPOSITORY

_STAGES = "tests/integration/test_annotation_stages.py"
TESTS = {
    "annotation/filtering.py": (
        "tests/unit/annotation/test_filtering.py",
        "tests/unit/annotation/test_chains.py",
        "tests/unit/annotation/test_long_texts.py",
    ),
    "annotation/candidates.py": (
        "tests/unit/annotation/test_candidates.py",
        "tests/unit/annotation/test_chains.py",
        _STAGES,
    ),
    "annotation/text_sampling.py": (
        "tests/unit/annotation/test_candidates.py",
        _STAGES,
    ),
    "annotation/chains.py": ("tests/unit/annotation/test_chains.py", "tests/integration/test_chains.py"),
    "annotation/placebo.py": (
        "tests/unit/annotation/test_placebo.py",
        "tests/integration/test_placebo_stage.py",
    ),
    "annotation/scoring.py": ("tests/unit/annotation/test_scoring.py", _STAGES),
    "language_model/losses.py": ("tests/unit/test_losses.py",),
    "language_model/scoring.py": (
        "tests/unit/language_model/test_scoring.py",
        "tests/integration/test_exact_pruning.py",
    ),
    "runs/feeding.py": ("tests/unit/runs/test_feeding.py",),
    "runs/run_tools.py": ("tests/integration/test_micro_batches.py", _STAGES),
    "runs/micro_batches.py": ("tests/integration/test_micro_batches.py", _STAGES),
    "stages/annotating.py": (_STAGES,),
    "audit/checking.py": ("tests/integration/test_checking.py",),
    "stages/evaluation.py": ("tests/integration/test_evaluation.py",),
    "stages/evaluation_report.py": ("tests/integration/test_evaluation_report_stage.py",),
    "stages/execution.py": (_STAGES, "tests/integration/test_micro_batches.py"),
    "stages/filtering.py": (_STAGES, "tests/integration/test_finished_work.py"),
    "stages/finetuning.py": (
        "tests/integration/test_finetuning_setup.py",
        "tests/integration/test_finetuning.py",
    ),
    "stages/index_building.py": ("tests/integration/test_bm25_index.py",),
    "stages/ingestion.py": (
        "tests/integration/test_ingestion.py",
        "tests/integration/test_corpus_versions.py",
    ),
    "stages/placebo.py": ("tests/integration/test_placebo_stage.py",),
    "stages/planning.py": ("tests/integration/test_planning.py", _STAGES),
    "stages/release.py": ("tests/integration/test_release.py", "tests/integration/test_placebo_stage.py"),
    "stages/run_setup.py": (
        _STAGES,
        "tests/integration/test_finetuning_setup.py",
        "tests/integration/test_retention.py",
    ),
    "stages/sampling.py": (_STAGES, "tests/integration/test_pruned_rows.py"),
    "stages/scoring.py": (_STAGES, "tests/integration/test_exact_pruning.py"),
    "storage/corpora/reading.py": (
        "tests/integration/test_ingestion.py",
        "tests/integration/test_corpus_versions.py",
    ),
    "storage/history/forgetting.py": (
        "tests/integration/test_forgetting.py",
        "tests/integration/test_forgetting_beside_other_work.py",
    ),
    "storage/objects/publication.py": (
        "tests/integration/test_object_store.py",
        "tests/integration/test_checkpoints_on_s3.py",
    ),
    "airflow_tasks/endings.py": ("tests/dags/test_endings.py",),
    "airflow_tasks/retrying.py": ("tests/dags/test_retrying.py",),
    "language_model/columns.py": (
        "tests/unit/language_model/test_layout.py",
        "tests/unit/language_model/test_kv_cache.py",
    ),
    "language_model/attention.py": (
        "tests/unit/language_model/test_kv_cache.py",
        "tests/unit/language_model/test_on_a_gpu.py",
    ),
    "language_model/packing.py": (
        "tests/unit/language_model/test_packing.py",
        "tests/unit/language_model/test_kv_cache.py",
    ),
    "release/chat_export.py": (
        "tests/integration/test_chat_export.py",
        "tests/integration/test_preference_export.py",
        "tests/integration/test_decontamination.py",
    ),
    "release/opened_release.py": ("tests/integration/test_chat_export.py",),
    "release/refusals.py": (
        "tests/integration/test_chat_export.py",
        "tests/integration/test_decontamination.py",
    ),
    "release/conversations.py": (
        "tests/unit/test_chat_conversation.py",
        "tests/integration/test_chat_export.py",
        "tests/integration/test_preference_export.py",
    ),
    "release/preference_export.py": ("tests/integration/test_preference_export.py",),
    "tools/servers/served_tool.py": (
        "tests/unit/tools/test_tool_server.py",
        "tests/unit/tools/test_tool_file.py",
    ),
    "tools/databases/query_text.py": ("tests/unit/tools/test_query_text.py",),
    "on_a_file/judge/judging.py": ("tests/unit/on_a_file/test_judging.py",),
    "on_a_file/judge/proposed_calls.py": ("tests/unit/on_a_file/test_judging.py",),
    "language_model/model.py": (
        "tests/unit/language_model/test_scoring.py",
        "tests/unit/language_model/test_verification.py",
        "tests/unit/language_model/test_sampling.py",
        "tests/unit/language_model/test_positions.py",
    ),
    "runs/rounding.py": ("tests/integration/test_rounding.py",),
    "runs/placebo_pools.py": (
        "tests/unit/annotation/test_placebo.py",
        "tests/integration/test_placebo_stage.py",
    ),
    "storage/machine/shared_files.py": ("tests/unit/test_shared_files.py",),
    "run_page/rights.py": (
        "tests/dags/test_run_page.py",
        "tests/dags/test_run_page_calls.py",
        "tests/dags/test_review_page.py",
    ),
}
"""The modules, and the tests that have to find a mistake in each: the quickest first."""
NOT_QUICK = (
    "tests/dags/test_run_page.py",
    "tests/integration/test_bm25_index.py",
    "tests/integration/test_evaluation.py",
    "tests/integration/test_evaluation_report_stage.py",
    "tests/integration/test_placebo_stage.py",
    "tests/integration/test_release.py",
)
"""Files whose modules have three to six places to change for each CPU second of the tests; all others have ten and more."""
KINDS = (
    "ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul)",
    "ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)",
    "ReplaceUnaryOperator_Delete_(USub|Not)",
    "AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|NumberReplacer",
    "ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop|ExceptionReplacer",
)
"""Of cosmic-ray's operators one or two for each place of a program; `|` is in types."""
_SECONDS = 600
_EQUIVALENT = Path(__file__).with_name("equivalent.toml")

Mutant = tuple[str, str, str]
"""The module, and the stripped line before and after."""


def main() -> int:
    """Mutate and test; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cosmic_ray", type=Path, nargs="?", help="its folder of programs")
    parser.add_argument("--quick", action="store_true", help="print the quickest tests of most modules")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; all by default")
    options = parser.parse_args()
    if options.quick:
        quickest = dict.fromkeys(files[0] for files in TESTS.values())
        _say("\n".join(path for path in quickest if path not in NOT_QUICK))
        return 0
    if unknown := sorted(set(options.modules) - set(TESTS)):
        parser.error(f"expected modules of {', '.join(TESTS)}, found {', '.join(unknown)}")
    listed = tomllib.loads(_EQUIVALENT.read_text())
    equivalent = {(module, one["before"], one["after"]) for module, found in listed.items() for one in found}
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="toolformer-mutants-") as folder:
        _copy_checkout(Path(folder))
        for module in options.modules or TESTS:
            results = _results(options.cosmic_ray.resolve(), Path(folder), module)
            alive = [mutant for mutant, is_alive in results if is_alive]
            unlisted = [mutant for mutant in alive if mutant not in equivalent]
            survivors += len(unlisted)
            listed_too = len(alive) - len(unlisted)
            _say(
                f"{module}: {len(results)} mutants, {len(alive)} survive, of which {listed_too} are equivalent"
            )
            for _, before, after in unlisted:
                _say(f"  - {before}\n  + {after}")
    return int(survivors > 0)


def _copy_checkout(folder: Path) -> None:
    """What git knows and does not ignore, so that no mutant is left in the checkout when this process is killed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout.split(
        "\0"
    )
    for name in names:
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)


def _results(programs: Path, folder: Path, module: str) -> list[tuple[Mutant, bool]]:
    """Each mutant of a module, and whether the tests stayed green."""
    # Without bytecode: a mutant may have the time and the size of the file before it.
    test = f"{sys.executable} -B -m pytest -x -q -p no:cacheprovider {' '.join(TESTS[module])}"
    subprocess.run(
        test.split(), cwd=folder, stdout=subprocess.DEVNULL, check=True
    )  # without a mutant they are green
    (folder / "mutants.toml").write_text(
        f"""[cosmic-ray]
module-path = {json.dumps(f"toolformer_ops/{module}")}
timeout = {_SECONDS}
excluded-modules = []
test-command = {json.dumps(test)}
distributor.name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [{json.dumps(f"^core/(?!({'|'.join(KINDS)})$)")}]
"""
    )
    session = folder / f"{module.replace('/', '-')}.sqlite"
    for command in (
        ("cosmic-ray", "init", "mutants.toml", session),
        ("cr-filter-operators", session, "mutants.toml"),
        ("cosmic-ray", "exec", "mutants.toml", session),
    ):
        subprocess.run([programs / command[0], *command[1:]], cwd=folder, check=True)
    dump = [programs / "cosmic-ray", "dump", session]
    dumped = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line)[1] for line in dumped.splitlines()]
    tried = [one for one in found if one["worker_outcome"] != "skipped"]
    return [(_mutant(module, one), one["test_outcome"] == "survived") for one in tried]


def _mutant(module: str, result: dict[str, Any]) -> Mutant:
    lines = result["diff"].splitlines() if isinstance(result["diff"], str) else result["diff"]
    changed = {
        line[0]: line[1:].strip() for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")
    }
    return module, changed["-"], changed["+"]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
