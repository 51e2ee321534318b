-- How many documents of the run, beyond what is finished, a tool has not filtered, how many it kept and has not scored, and of how many the
-- placebos are not scored (0 where the run has no recipe of placebos).
select count(*) filter (where not is_filtered) as unfiltered,
       count(*) filter (where is_kept and not is_scored) as unscored,
       count(*) filter (where is_kept and cast(:placebo_recipe_id as text) is not null and not has_placebos) as without_placebos
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) member
cross join lateral (
    select
        exists (
            select from stage_ledger done
            where done.recipe_id = :filter_recipe_id and done.document_id = member.variant_id and done.stage = 'filter'
        ) as is_filtered,
        exists (
            select from filter_decisions decision
            where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = member.variant_id and decision.kept
        ) as is_kept,
        exists (
            select from stage_ledger done
            where done.recipe_id = :scoring_recipe_id and done.document_id = member.variant_id and done.stage = 'score'
        ) as is_scored,
        exists (
            select from stage_ledger done
            where done.recipe_id = :placebo_recipe_id and done.document_id = member.variant_id and done.stage = 'placebo'
        ) as has_placebos
) found
