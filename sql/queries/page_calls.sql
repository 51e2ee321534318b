-- The run page's lists of calls, and the page of a call.

-- name: document
-- A text of a run with its record: the document, and the variant with the url and date of the run's version.
select document.document_id, coalesce(member.variant_id, member.document_id) as variant_id, member.ordinal,
    member.title,
       left(record.url, 2000) as url, record.document_date, length(document.text) as characters,
       substr(document.text, :first + 1, :at_most) as text
from documents asked
join documents document on document.document_id = coalesce(asked.variant_of, asked.document_id)
join corpus_documents member
    on member.corpus_id = :corpus_id and member.document_id = document.document_id
        and is_member(member, :corpus_version)
   and member.ordinal < :below_ordinal
join documents record on record.document_id = coalesce(member.variant_id, member.document_id)
where asked.document_id = cast(:document_id as uuid)

-- name: call_tokens
-- The weights of a scoring recipe, and of a call the tokens that have them and their log probabilities, a
-- list for each loss; null if they are not stored.
select recipe.definition -> 'weights' as weights, token_log_probabilities as log_probabilities, scored_tokens
from call_losses
join recipes recipe on recipe.recipe_id = scoring_recipe_id
where scoring_recipe_id = :scoring_recipe_id and document_id = cast(:document_id as uuid)
    and call_id = cast(:call_id as uuid)

-- name: what_the_tool_said
-- What the tool said of a call instead of a result; no row if the call was not executed, an empty text if its
-- reason says all.
select answer.message
from candidate_calls call
join call_results answer on answer.tool = :tool and answer.tool_version = :tool_version
    and answer.input_key = call.input_key
where call.sampling_recipe_id = :sampling_recipe_id
  and call.document_id = cast(:document_id as uuid) and call.call_id = cast(:call_id as uuid)

-- name: call_in_runs
-- The same call (text, place, tool and call) in the newest other runs over the corpus, of these DAGs.
with others as (
    select run.run_id, run.started_at, coalesce('nightly_' || run.schedule, 'annotate_corpus') as dag_id
    from annotation_runs run
    join run_tools rt on rt.run_id = run.run_id and rt.tool = :tool
    where run.corpus_id = :corpus_id and run.run_id <> :run_id
    order by run.started_at desc
    limit 20
)
select others.*, call.call_id, call.result, call.outcome, call.reason, call.release_outcome, call.gain,
    call.probability_with,
       call.scoring_recipe_id = :scoring_recipe_id as is_same_row
from others
left join lateral (
    select *
    from candidates
    where run_id = others.run_id and tool = :tool and document_uuid = cast(:document_id as uuid)
      and variant_uuid = cast(:variant_id as uuid) and position_char = :position_char
          and call_text = :call_text
    limit 1
) call on true
where others.dag_id = any (cast(:dag_ids as text[]))
order by others.started_at desc

-- name: recipes
-- What the stages of a tool were asked to do: what each recipe's id is the hash of.
select recipe_id, stage, definition
from recipes
where recipe_id = any (cast(:recipe_ids as text[]))
order by array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], stage)

-- name: reasons
-- For which reasons calls of these recipes were not scored. Finds one reason after the other in the index
-- call_losses_not_scored, and pruned_below, which is not in it, by a look for one such call.
with recursive recipes as (
    select unnest(cast(:scoring_recipe_ids as text[])) as recipe_id
),
found as (
    select recipe_id, (
        select min(reason) from call_losses
        where scoring_recipe_id = recipe_id and scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
          and reason is not null and reason <> 'pruned_below'
    ) as reason
    from recipes
    union all
    select found.recipe_id, (
        select min(loss.reason) from call_losses loss
        where loss.scoring_recipe_id = found.recipe_id
            and loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
          and loss.reason > found.reason and loss.reason <> 'pruned_below'
    )
    from found
    where found.reason is not null
)
select distinct reason from found where reason is not null
order by reason

-- name: scan
-- Keys of a tool's calls in one of three orders (:sort), from a place in that order on, at most :scanned:
-- scored ones between two gains before their placebos, those that gain most first or least first; or, by
-- document, those that were not scored for one reason. Of the three scans Postgres runs the one that is asked
-- for. They may be of other runs with the recipe.
select coalesce(document.variant_of, found.variant_id) as document_id, found.variant_id, found.call_id,
    found.gain_bound
from (
    (select document_id as variant_id, call_id, gain_bound
     from call_losses
     where :sort = 'most_saved'
       and scoring_recipe_id = :scoring_recipe_id
       and reason is null
       and gain_bound >= :at_least
       and gain_bound < :below
       and gain_bound <= :after_gain_bound
       and (gain_bound < :after_gain_bound or call_id > cast(:after_call_id as uuid))
     order by gain_bound desc, call_id
     limit :scanned)
    union all
    (select document_id, call_id, gain_bound
     from call_losses
     where :sort = 'least_saved'
       and scoring_recipe_id = :scoring_recipe_id
       and reason is null
       and gain_bound >= :at_least
       and gain_bound < :below
       and gain_bound >= :after_gain_bound
       and (gain_bound > :after_gain_bound or call_id > cast(:after_call_id as uuid))
     order by gain_bound, call_id
     limit :scanned)
    union all
    (select document_id, call_id, gain_bound
     from call_losses
     where :sort = 'by_reason'
       and scoring_recipe_id = :scoring_recipe_id
       and reason = cast(:reason as text)
       and reason <> 'pruned_below'  -- as the index call_losses_not_scored says
       and (document_id, call_id) > (cast(:after_variant_id as uuid), cast(:after_call_id as uuid))
     order by document_id, call_id
     limit :scanned)
) found
join documents document on document.document_id = found.variant_id

-- name: scan_in_text_order
-- Texts of a run in the order of the corpus, from a place on, at most :scanned, by the id under which a
-- tool's calls are stored.
select document_id, case when :reads_record then coalesce(variant_id, document_id)
    else document_id end as variant_id, ordinal
from corpus_documents member
where corpus_id = :corpus_id
  and is_member(member, :corpus_version)
  and ordinal >= :after_ordinal
  and ordinal < :below_ordinal
  and (cast(:document_id as uuid) is null or document_id = cast(:document_id as uuid)
      or variant_id = cast(:document_id as uuid))
order by ordinal
limit :scanned
