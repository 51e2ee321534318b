-- Delete the results that no call asks for any more, of the inputs that forgotten calls asked for. One scan of candidate_calls: there is
-- no index on the inputs.
with asked_elsewhere as (
    select distinct asked.tool, call.input_key
    from candidate_calls call
    join run_tools asked on asked.sampling_recipe_id = call.sampling_recipe_id
    join forgotten_inputs input on input.tool = asked.tool and input.input_key = call.input_key
),
results as (
    delete from call_results result using forgotten_inputs input
    where input.tool = result.tool
      and input.input_key = result.input_key
      and not exists (
          select from asked_elsewhere other where other.tool = result.tool and other.input_key = result.input_key
      )
    returning 1
),
inputs as (
    delete from forgotten_inputs
)
select 'call_results' as table_name, count(*) as rows from results
