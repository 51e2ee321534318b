-- How many calls of one tool of a run save at least :threshold nats, in how many texts, and how many of them may be released; by the run's
-- keep rule. And of the sampled placebos, how many the same rule would keep.
with reached as materialized (
    select loss.document_id, loss.call_id
    from call_losses loss
    where loss.scoring_recipe_id = :scoring_recipe_id
      and loss.reason is null
      and loss.loss_reduction >= :threshold
      and (cast(:tau_information as double precision) is null
           or carries_information(cast(:placebo_recipe_id as text), loss.document_id, loss.call_id, cast(:tau_information as double precision)))
),
of_run as (
    select reached.document_id, call.input_only_after
    from reached
    join run_tool_documents member
        on member.run_id = :run_id and member.tool = :tool and member.variant_id = reached.document_id
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = reached.document_id and call.call_id = reached.call_id
)
select count(*) as calls, count(distinct document_id) as texts, count(*) filter (where not input_only_after) as releasable_calls
from of_run
