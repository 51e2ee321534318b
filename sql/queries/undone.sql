-- Documents that a stage has still to do, and what it needs to do them.

-- name: without_ledger
-- Of these documents those that the stage has not finished under the recipe, in the order of their ids.
select d.document_id, d.text, d.url, d.document_date
from documents d
where d.document_id = any(cast(:document_ids as uuid[]))
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.document_id and l.stage = :stage)
order by d.document_id

-- name: unfinished
-- How many documents of the run, beyond what is finished, a tool has not filtered, how many it kept and has
-- not scored, and of how many the placebos are not scored (0 if the run has no recipe of placebos).
select count(*) filter (where not is_filtered) as unfiltered,
       count(*) filter (where is_kept and not is_scored) as unscored,
       count(*) filter (where is_kept and not has_placebos) as without_placebos
from member_stages(:members, :filter_recipe_id, :scoring_recipe_id, :placebo_recipe_id)

-- name: after_stage
-- A shard's documents of the run, beyond what is finished, with a kept paragraph, that the stage before has
-- finished and this one has not.
select d.variant_id as document_id
from members_to_do(:members) d
where (:shard_count = 1 or document_shard(d.variant_id, :shard_count) = :shard_index)
  and exists (
      select from filter_decisions f
      where f.filter_recipe_id = :filter_recipe_id and f.document_id = d.variant_id and f.kept)
  and exists (
      select from stage_ledger p
      where p.recipe_id = :previous_recipe_id and p.document_id = d.variant_id and p.stage = :previous_stage)
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.variant_id and l.stage = :stage)
order by d.variant_id

-- name: kept_tokens
-- About how many tokens a filter kept of each of these documents; a document of which it kept nothing has no
-- row.
select document_id, about_tokens(sum(end_char - start_char)) as tokens
from filter_decisions
where filter_recipe_id = :filter_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
  and kept
group by document_id

-- name: calls
select document_id, call_id, paragraph, position_token, position_char, call_input, call_text, input_key,
    effective_input,
       sample_count, input_only_after
from candidate_calls
where sampling_recipe_id = :sampling_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
order by document_id, position_char, call_id

-- name: known_results
-- Which of these inputs are answered already, and the reason if the answer is that there is none.
select input_key, results, reason
from call_results
where tool = :tool and tool_version = :tool_version and input_key = any(cast(:input_keys as uuid[]))

-- name: lacks_results
-- A row if one of these inputs has no answer.
select 1
from unnest(cast(:input_keys as uuid[])) as asked (input_key)
where not exists (
    select
    from call_results result
    where result.tool = :tool and result.tool_version = :tool_version and result.input_key = asked.input_key
)
limit 1

-- name: to_filter
-- A shard's documents of the run, beyond what is finished, that a filter has not judged, in the order of
-- their ids.
select d.variant_id as document_id
from members_to_do(:members) d
where (:shard_count = 1 or document_shard(d.variant_id, :shard_count) = :shard_index)
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.variant_id and l.stage = 'filter')
order by d.variant_id

-- name: kept_paragraphs
select document_id, paragraph, start_char, end_char
from filter_decisions
where filter_recipe_id = :filter_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
  and kept
order by document_id, paragraph

-- name: executed_calls
-- The candidate calls of these documents with the tool's results (nulls if it was not run).
select c.document_id, c.call_id, c.paragraph, c.position_token, c.position_char, c.call_input, c.call_text,
       c.input_key, c.effective_input, c.input_only_after, r.results, r.reason
from candidate_calls c
left join call_results r
    on r.tool = :tool and r.tool_version = :tool_version and r.input_key = c.input_key
where c.sampling_recipe_id = :sampling_recipe_id
  and c.document_id = any(cast(:document_ids as uuid[]))
order by c.document_id, c.position_char, c.call_id
