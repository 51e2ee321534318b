create view run_lost_samples as
select rt.run_id, rt.tool, lost.*
from run_tools rt
cross join lateral (
    -- Within the lateral query the recipe is a constant, so that the index is read.
    with of_run as (
        select sample.*, member.document_id as record_id,
               row_number() over (partition by sample.reason
                   order by sample.sample_key, member.document_id) as place
        from lost_samples sample
        join run_tool_documents member
            on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = sample.document_id
        where sample.sampling_recipe_id = rt.sampling_recipe_id
    )
    select of_run.reason, cast(of_run.record_id as text) as document_id, of_run.position_char,
           substr(document.text, greatest(of_run.position_char - 120, 0) + 1,
               least(of_run.position_char, 120)) as text_before,
           of_run.sample_text, of_run.sample_count, of_run.place
    from of_run
    join documents document on document.document_id = of_run.document_id
    where of_run.place <= 50
) lost;
comment on view run_lost_samples is
    'Up to 50 samples of each tool and reason that became no call, with the text before them: what the '
    'model wrote, and why that is no call. yield_by_stage counts all of them.';
comment on column run_lost_samples.text_before is 'At most 120 characters of the text before it.';
comment on column run_lost_samples.place is
    '1 to 50: the place in the choice, which is random and the same at each look.';
call inherit_comments('run_lost_samples', 'run_tool_documents', 'lost_samples');
