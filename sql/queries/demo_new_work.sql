-- Documents of a run by tool: those with a paragraph to annotate, and those of them that were scored since the run began.
select rt.tool,
       count(*) as documents,
       count(*) filter (where l.committed_at >= r.started_at) as annotated_now
from annotation_runs r
join run_tools rt on rt.run_id = r.run_id
join run_tool_documents d on d.run_id = rt.run_id and d.tool = rt.tool
join stage_ledger l on l.recipe_id = rt.scoring_recipe_id and l.stage = 'score' and l.document_id = d.variant_id
where r.run_id = :run_id
group by rt.tool
order by rt.tool
