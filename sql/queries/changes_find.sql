-- The calls that one of two releases holds and the other does not, with their facts, in the temporary table changed_calls. A call is
-- the same where text, tool, place, call and result are the same: what it was computed by may differ.
drop table if exists changed_calls;
create temporary table changed_calls on commit drop as
with differing as (
    select coalesce(now.document_id, before.document_id) as document_id,
           coalesce(now.call_id, before.call_id) as call_id,
           coalesce(now.scoring_recipe_id, before.scoring_recipe_id) as scoring_recipe_id,
           coalesce(now.tool, before.tool) as tool,
           now.call_id is not null as is_added
    from (select * from release_calls where release_id = :release_id) now
    full join (select * from release_calls where release_id = :before_release_id) before
        on before.call_id = now.call_id and before.scoring_recipe_id = now.scoring_recipe_id
    where now.call_id is null or before.call_id is null
),
described as (
    select differing.*,
           own.run_id as own_run_id,
           case when differing.is_added then cast(:before_run_id as text) else cast(:run_id as text) end as other_run_id,
           own.sampling_recipe_id, call.document_id as variant_id, call.position_char, call.call_text, loss.result, loss.loss_reduction
    from differing
    join run_tools own
        on own.run_id = case when differing.is_added then cast(:run_id as text) else cast(:before_run_id as text) end
       and own.tool = differing.tool
    join annotation_runs run on run.run_id = own.run_id
    left join corpus_documents member  -- names the variant under which the rows of a tool are that reads the record
        on own.reads_record and member.corpus_id = run.corpus_id and member.document_id = differing.document_id
       and member.first_version <= run.corpus_version and (member.left_version is null or member.left_version > run.corpus_version)
    left join candidate_calls call
        on call.sampling_recipe_id = own.sampling_recipe_id
       and call.document_id = coalesce(member.variant_id, differing.document_id) and call.call_id = differing.call_id
       and call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))  -- reads no other partition
    left join call_losses loss
        on loss.scoring_recipe_id = differing.scoring_recipe_id and loss.document_id = call.document_id
       and loss.call_id = differing.call_id
       and loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
),
compared as (
    select *,
           count(*) over (partition by document_id, tool, position_char, call_text, result) as with_same_result,
           -- The other release's result of the same call; a release holds at most one call at a place.
           coalesce(lag(result) over same_call, lead(result) over same_call) as other_result
    from described
    window same_call as (partition by document_id, tool, position_char, call_text order by is_added)
)
select document_id, call_id, scoring_recipe_id, tool, is_added, own_run_id, other_run_id, sampling_recipe_id, variant_id,
       position_char, call_text, result, loss_reduction, other_result
from compared
where call_text is null or with_same_result = 1;  -- rows that were dropped have no facts
create index on changed_calls (document_id);
analyze changed_calls
