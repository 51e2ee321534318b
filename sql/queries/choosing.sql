-- Which calls a release takes.

-- name: kept_counts
-- How much of one tool's work in one run is judged, kept and releasable. Calls that are never released (input
-- only after) count as kept, pruned ones as not kept. Parameters: numbers.counted of checked_yields.
select cast(sum(judged_calls) as bigint) as judged_calls, cast(sum(kept_calls) as bigint) as kept_calls,
       cast(sum(releasable_calls) as bigint) as releasable_calls,
           cast(sum(kept_texts) as bigint) as kept_texts
from (
    select judged_calls, kept_calls, releasable_calls, kept_texts from checked_yields
        where run_id = :base_run_id and tool = :tool
    union all
    select coalesce(sum(calls), 0), coalesce(sum(calls) filter (where outcome = 'kept'), 0),
           coalesce(sum(releasable) filter (where outcome = 'kept'), 0),
               coalesce(sum(texts) filter (where outcome = 'kept'), 0)
    from counted_outcomes(cast(:rt as run_tools), cast(:run as annotation_runs),
        cast(:base as annotation_runs))
) found

-- name: choice_table
-- first_texts: the first texts of each tool with a kept call, in the order of their ids; variant_id is the id
-- under which the tool's rows are.
-- releasable_calls: the kept calls of all tools in these texts that could be released: those whose input is
-- not only after them.
set local work_mem = '64MB';
set local jit = off;
drop table if exists first_texts, texts_to_choose_from, releasable_calls;
create temporary table first_texts (tool text, reads_record boolean, document_id uuid,
    variant_id uuid) on commit drop;
create temporary table releasable_calls (
    document_id uuid, position_char integer, call_id uuid, variant_id uuid, tool text,
        sampling_recipe_id text,
    execution_recipe_id text, scoring_recipe_id text, gain double precision, left_out text
) on commit drop

-- name: first_texts
-- The first texts of one tool with a kept call, :texts at most. Only losses are read, in the order of their
-- index; whether a text is of the run, and what else a call must fulfil, is asked of those that are found.
insert into first_texts
select :tool, false, loss.document_id, loss.document_id
from call_losses loss
left join call_information placebo
    on placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = loss.document_id
        and placebo.call_id = loss.call_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and run_keeps(loss.reason, loss.gain_bound, :keep_threshold, loss.probability_with, placebo.probability)
  and (cast(:last_document_id as uuid) is null or loss.document_id <= :last_document_id)
group by loss.document_id
order by loss.document_id
limit cast(:texts as bigint)

-- name: first_records
-- As first_texts, of a tool that reads url and date. The rows of a variant have the place of its text, so
-- that it does not matter which record of a text was ingested first.
insert into first_texts
select :tool, true, coalesce(variant.variant_of, kept.document_id), kept.document_id
from (
    select loss.document_id
    from call_losses loss
    left join call_information placebo
        on placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = loss.document_id
            and placebo.call_id = loss.call_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.gain_bound, :keep_threshold, loss.probability_with, placebo.probability)
    group by loss.document_id
) kept
left join documents variant on variant.document_id = kept.document_id and variant.variant_of is not null
where cast(:last_document_id as uuid) is null
    or coalesce(variant.variant_of, kept.document_id) <= :last_document_id
order by 3, 4
limit cast(:texts as bigint)

-- name: texts_to_choose_from
-- The texts of the run that are among first_texts of any tool, each with its variant, which has its url and
-- date. The corpus is read once.
create temporary table texts_to_choose_from on commit drop as
select member.document_id, member.variant_id
from members_to_do(cast(:members as jsonb) || '{"reads_record": true, "last_document_id": null}') member
where member.document_id in (select variant_id from first_texts where not reads_record)
   or member.variant_id in (select variant_id from first_texts where reads_record);
alter table texts_to_choose_from add primary key (document_id);
analyze texts_to_choose_from

-- name: kept_calls
-- The kept calls of one tool in texts_to_choose_from that could be released, and why some are refused
-- whatever else is there. The recipes are constants, so that only their partitions are read.
insert into releasable_calls
select
    chosen.document_id, call.position_char, call.call_id, loss.document_id, :tool, call.sampling_recipe_id,
    :execution_recipe_id, loss.scoring_recipe_id,
        call_gain(loss.gain_bound, loss.probability_with, placebo.probability),
    release_refusal(loss.result, :require_following, chosen.document_id, call.position_char)
from texts_to_choose_from chosen
join call_losses loss on loss.document_id = case when :reads_record then chosen.variant_id
    else chosen.document_id end
join candidate_calls call on call.document_id = loss.document_id and call.call_id = loss.call_id
left join call_information placebo
    on placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = loss.document_id
        and placebo.call_id = loss.call_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and call.sampling_recipe_id = :sampling_recipe_id
  and run_keeps(loss.reason, loss.gain_bound, :keep_threshold, loss.probability_with, placebo.probability)
  and not call.input_only_after
  and (cast(:last_document_id as uuid) is null or chosen.document_id <= :last_document_id)

-- name: choose_calls
-- Which of releasable_calls a release holds: their column left_out stays null. Of those that release_refusal
-- did not refuse, calls leave for one of two reasons:
--   better_call_at_position   another call at this position of the text gains more (of equal ones: has the
--                             smaller id)
--   above_max_examples        its tool has max_examples texts already, taken in the order of their ids (null:
--                             no limit)
with placed as (
    select ctid as row_id, tool, document_id,
           row_number() over (partition by document_id, position_char
               order by gain desc, call_id) = 1 as is_best
    from releasable_calls
    where left_out is null
),
numbered as (
    select *, dense_rank() over (partition by tool, is_best order by document_id) as example
    from placed
)
update releasable_calls call
set left_out = case when numbered.is_best then 'above_max_examples' else 'better_call_at_position' end
from numbered
where numbered.row_id = call.ctid
    and (not numbered.is_best or numbered.example > cast(:max_examples as integer))

-- name: left_out
-- For each tool: how many of its calls in first_texts the release holds, and leaves out for each reason; and
-- in how many of the tool's own first texts it has the best call at some place.
with reached as (
    select distinct on (tool) tool, document_id as last_text
    from first_texts
    order by tool, document_id desc
)
select
    reached.tool,
    count(*) filter (where call.left_out is null) as released,
    count(*) filter (where call.left_out = 'result_has_other_sign') as result_has_other_sign,
    count(*) filter (where call.left_out = 'result_does_not_follow') as result_does_not_follow,
    count(*) filter (where call.left_out = 'better_call_at_position') as better_call_at_position,
    count(*) filter (where call.left_out = 'above_max_examples') as above_max_examples,
    count(distinct call.document_id) filter (
        where call.document_id <= reached.last_text
            and coalesce(call.left_out, 'above_max_examples') = 'above_max_examples') as best_texts
from reached
join releasable_calls call on call.tool = reached.tool
group by reached.tool
order by reached.tool

-- name: index_chosen_calls
-- Pages of texts are read by id; without statistics Postgres would read whole partitions for each page.
create index on releasable_calls (document_id) where left_out is null;
analyze releasable_calls

-- name: leave_out
-- Take the calls in these texts out of the release, for a reason that is not theirs but their text's.
with leaving as (
    update releasable_calls
    set left_out = :reason
    where left_out is null and document_id = any (cast(:document_ids as uuid[]))
    returning tool
)
select tool, count(*) as calls from leaving group by tool order by tool

-- name: store
-- Why a release takes or leaves each of releasable_calls. A run that made the same release may have had other
-- calls to leave, too.
insert into release_choices (release_id, document_id, call_id, left_out)
select :release_id, document_id, call_id, left_out
from releasable_calls
order by document_id, call_id
on conflict do nothing

-- name: texts
-- The next texts with a call of the release, in the order of their ids, with the url that the text has in the
-- run: that of its variant.
select document.document_id, document.text, record.url
from (
    select document_id
    from releasable_calls
    where left_out is null and document_id > cast(:after as uuid)
    group by document_id
    order by document_id
    limit :page_size
) chosen
join texts_to_choose_from member on member.document_id = chosen.document_id
join documents document on document.document_id = member.document_id
join documents record on record.document_id = member.variant_id
order by document.document_id

-- name: read_pages_by_index
-- Pages are read by key, from pages of tables that the choice has just read. At the usual price of a page
-- Postgres would read whole partitions for each page of texts, up to some ten thousand texts.
set local random_page_cost = 1.1

-- name: calls_of_texts
-- The calls of the release in texts with ids in (after, until]: the columns are the fields of
-- release.format.ReleasedCall.
select
    chosen.document_id,
    cast(chosen.call_id as text) as call_id,
    chosen.tool,
    call.call_input as input,
    loss.result,
    chosen.position_char,
    call.position_probability,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_with_result,
    loss.loss_reduction,
    chosen.sampling_recipe_id,
    chosen.execution_recipe_id,
    chosen.scoring_recipe_id,
    loss.loss_without_call_full_context,
    result_follows(loss.result, substr(document.text, chosen.position_char + 1, 120)) as result_follows
from releasable_calls chosen
join candidate_calls call
    on call.sampling_recipe_id = chosen.sampling_recipe_id
   and call.document_id = chosen.variant_id
   and call.call_id = chosen.call_id
join call_losses loss
    on loss.scoring_recipe_id = chosen.scoring_recipe_id
   and loss.document_id = chosen.variant_id
   and loss.call_id = chosen.call_id
join documents document on document.document_id = chosen.document_id
where call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))  -- reads no other partition
  and loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
  and chosen.left_out is null
  and chosen.document_id > cast(:after as uuid)
  and chosen.document_id <= cast(:until as uuid)
order by chosen.document_id, chosen.position_char, chosen.call_id
