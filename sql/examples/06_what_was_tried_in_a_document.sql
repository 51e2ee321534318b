-- What was tried in a document, and with what losses?
-- Every candidate call, scored or not, of one document; here of the one with the best call of the newest run. Put your own document's
-- id or url into the first query.
with document as (
    select t.run_id, best.document_id
    from run_tools t
    cross join lateral best_kept_calls(t.run_id, t.tool, 1) best
    where t.run_id = (select run_id from annotation_runs order by started_at desc limit 1)
    order by best.loss_reduction desc, best.call_id
    limit 1
)
select t.tool, c.position_char, c.call_text, l.result, l.reason, l.loss_without_call, l.loss_without_result, l.loss_with_result,
       l.loss_reduction, l.reduction_bound,
       is_kept(l.reason, l.loss_reduction, t.keep_threshold)
           and carries_information(t.placebo_recipe_id, l.document_id, l.call_id, t.tau_information) as is_kept
from document d
join run_tools t on t.run_id = d.run_id
join run_tool_documents r on r.run_id = t.run_id and r.tool = t.tool and r.document_id = d.document_id
join candidate_calls c on c.sampling_recipe_id = t.sampling_recipe_id and c.document_id = r.variant_id
left join call_losses l on l.scoring_recipe_id = t.scoring_recipe_id and l.document_id = c.document_id and l.call_id = c.call_id
order by c.position_char, t.tool, c.call_text;
