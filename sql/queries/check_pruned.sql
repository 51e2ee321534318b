-- What was not computed for one tool in one run: each pruned position and call, the most that a call could save, and prune_below.
select * from (
select
    'position ' || place.position_char || ' of ' || cast(place.document_id as text) as pruned,
    place.loss_without_call as bound,
    tool.prune_below
from run_tools tool
join pruned_positions place on place.sampling_recipe_id = current_setting('toolformer.sampling_recipe_id')
join run_documents member on member.run_id = tool.run_id and member.document_id = place.document_id
where tool.run_id = current_setting('toolformer.run_id')
  and tool.tool = current_setting('toolformer.tool')
union all
select
    'call ' || cast(loss.call_id as text),
    loss.reduction_bound,
    tool.prune_below
from run_tools tool
join call_losses loss
    on loss.scoring_recipe_id = current_setting('toolformer.scoring_recipe_id')
   and loss.reason = 'pruned_below'
join run_documents member on member.run_id = tool.run_id and member.document_id = loss.document_id
where tool.run_id = current_setting('toolformer.run_id')
  and tool.tool = current_setting('toolformer.tool')
) as pruned_work
