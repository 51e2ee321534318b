-- How long does a document take?
-- Seconds of work by tool and stage, over the documents of a run, whichever run did the work.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select t.tool, l.stage, count(*) as documents, round(avg(l.seconds)::numeric, 3) as seconds_a_document,
       round((sum(l.seconds) / 3600)::numeric, 3) as hours
from run_tools t
join stage_ledger l
    on (l.stage, l.recipe_id) in (('filter', t.filter_recipe_id), ('sample', t.sampling_recipe_id),
                                  ('execute', t.execution_recipe_id), ('score', t.scoring_recipe_id), ('placebo', t.placebo_recipe_id))
join run_tool_documents d on d.run_id = t.run_id and d.tool = t.tool and d.variant_id = l.document_id
where t.run_id = run_or_newest(:'run')
group by t.tool, l.stage
order by t.tool, array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], l.stage);
