create view counted_judgements as
select distinct on (judged.release_id, judged.reviewer, judged.call_id, judged.is_placebo)
       judged.release_id, judged.reviewer, judged.tool, cast(judged.document_id as text) as document_id,
       cast(judged.call_id as text) as call_id, judged.scoring_recipe_id, judged.is_placebo,
           cast(judged.source_call_id as text) as source_call_id,
       judged.seed, judged.verdict, judged.judged_at
from judgements judged
order by judged.release_id, judged.reviewer, judged.call_id, judged.is_placebo, judged.judged_at desc,
    judged.submission_id;
comment on view counted_judgements is
    'The judgements that count: the newest of each reviewer on each call of a release, and apart from it on '
    'the placebo in its place.';
call inherit_comments('counted_judgements', 'judgements');
