-- A sample of a release's calls in the order in which they are shown, drawn by the seed; every second one by another draw is to be shown with
-- another call's result. Equal seeds, tools and sizes give equal samples.
with drawn as (
    select document_id, call_id, scoring_recipe_id, tool, md5(cast(:seed as text) || ' ' || call_id::text) as place
    from release_calls
    where release_id = :release_id and (cast(:tool as text) is null or tool = :tool)
    order by place
    limit 2 * cast(:calls as bigint)
)
select document_id, call_id, scoring_recipe_id, tool, row_number() over (order by md5('placebo ' || place)) % 2 = 0 as is_placebo
from drawn
order by place
