create view counted_judgements as
select distinct on (judged.release_id, judged.reviewer, judged.call_id, judged.is_placebo)
       judged.release_id, judged.reviewer, judged.tool, judged.document_id, judged.call_id, judged.scoring_recipe_id, judged.is_placebo,
       judged.source_call_id, judged.seed, judged.verdict, judged.judged_at
from judgements judged
order by judged.release_id, judged.reviewer, judged.call_id, judged.is_placebo, judged.judged_at desc, judged.submission_id;
comment on view counted_judgements is 'The judgements that count: the newest of each reviewer on each call of a release, and apart from it on the placebo in its place.';
comment on column counted_judgements.release_id is 'The release.';
comment on column counted_judgements.reviewer is 'The name by which the reviewer is signed in to Airflow.';
comment on column counted_judgements.tool is 'The tool''s name.';
comment on column counted_judgements.document_id is 'The text.';
comment on column counted_judgements.call_id is 'The call.';
comment on column counted_judgements.scoring_recipe_id is 'Where its losses are: key of call_losses.';
comment on column counted_judgements.is_placebo is 'Whether the result of another call was shown in its place.';
comment on column counted_judgements.source_call_id is 'Of a placebo: the call whose result was shown.';
comment on column counted_judgements.seed is 'The seed that the sample was drawn by.';
comment on column counted_judgements.verdict is 'useful, useless, wrong or skip.';
comment on column counted_judgements.judged_at is 'When.';
