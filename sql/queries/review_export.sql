-- Every judgement of a release in the order in which they were made, with whether it counts.
select judged.release_id, judged.seed, judged.tool, judged.document_id, judged.call_id, judged.scoring_recipe_id, judged.is_placebo,
       judged.source_call_id, judged.reviewer, judged.verdict, judged.judged_at, judged.submission_id,
       counted.call_id is not null as counts
from judgements judged
left join counted_judgements counted
    on counted.release_id = judged.release_id and counted.reviewer = judged.reviewer and counted.call_id = judged.call_id
   and counted.is_placebo = judged.is_placebo and counted.judged_at = judged.judged_at and counted.verdict = judged.verdict
where judged.release_id = :release_id
order by judged.judged_at, judged.submission_id
