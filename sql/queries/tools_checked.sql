-- The tools of a run for which another run passed the checks of the same rows: those of the same recipe, threshold and bounds for the
-- documents of the same version of the corpus.
select asked.tool
from annotation_runs run
join run_tools asked on asked.run_id = run.run_id
where run.run_id = :run_id
  and exists (
      select
      from run_tools other
      join annotation_runs earlier on earlier.run_id = other.run_id
      cross join lateral (
          select bool_and(result.success or result.severity = 'warn') as passed
          from quality_results result
          where result.run_id = other.run_id and result.subject = other.tool
      ) checks
      where other.run_id <> asked.run_id
        and other.tool = asked.tool
        and other.scoring_recipe_id = asked.scoring_recipe_id
        and other.keep_threshold = asked.keep_threshold
        and other.tau_information is not distinct from asked.tau_information
        and other.placebo_recipe_id is not distinct from asked.placebo_recipe_id
        and earlier.corpus_id = run.corpus_id
        and earlier.corpus_version = run.corpus_version
        and earlier.ordinal_limit is not distinct from run.ordinal_limit
        and earlier.parameters -> 'min_kept_texts' is not distinct from run.parameters -> 'min_kept_texts'
        and earlier.parameters -> 'max_kept_share' is not distinct from run.parameters -> 'max_kept_share'
        and earlier.parameters -> 'max_false_discovery_rate' is not distinct from run.parameters -> 'max_false_discovery_rate'
        and checks.passed)
