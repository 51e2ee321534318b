-- The first texts of one tool with a kept call, :texts at most. Only losses are read, in the order of their index; whether a text
-- is of the run, and what else a call must fulfil, is asked of those that are found.
insert into first_texts
select :tool, :reads_record, loss.document_id
from call_losses loss
where loss.scoring_recipe_id = :scoring_recipe_id
  and run_keeps(loss.reason, loss.loss_reduction, :keep_threshold,
      :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
group by loss.document_id
order by loss.document_id
limit cast(:texts as bigint)
