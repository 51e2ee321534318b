-- What need not be computed, since no threshold of interest could keep it; losses in a context window; what a run was to cost.
-- A run prunes below its parameter prune_below, exactly: what is left out is stored with the bound that proves it.

alter table run_tools
    add column prune_below double precision not null default 0 check (prune_below >= 0),
    add constraint what_a_run_keeps_was_not_pruned check (keep_threshold >= prune_below);
comment on column run_tools.prune_below is 'Loss reduction in nats below which calls may be missing: counts at thresholds from here on are exact. 0: nothing was pruned.';

-- Runs from before this migration pruned nothing and scored with the whole text before a call.
update annotation_runs
set parameters = parameters || '{"prune_below": 0, "scoring_context_tokens": null}'
where parameters <> '{}' and not parameters ? 'prune_below';

alter table annotation_runs
    add column estimate jsonb check (jsonb_typeof(estimate) = 'object'),
    add column cost jsonb check (jsonb_typeof(cost) = 'object');
comment on column annotation_runs.estimate is 'What the run was expected to take, before it began: texts, calls, device hours, rows. Null where nobody asked.';
comment on column annotation_runs.cost is 'What it took, in the same terms. Null before its end.';

create table pruned_positions (
    sampling_recipe_id   text not null,
    document_id          uuid not null,
    paragraph            integer not null check (paragraph >= 0),
    position_token       integer not null check (position_token >= 0),
    position_char        integer not null check (position_char >= 0),
    position_probability double precision not null check (position_probability between 0 and 1),
    loss_without_call    double precision not null check (loss_without_call >= 0 and loss_without_call < 'Infinity'),
    primary key (sampling_recipe_id, document_id, paragraph, position_token)
) partition by list (sampling_recipe_id);
create index on pruned_positions (document_id);
comment on table pruned_positions is 'Positions at which no call was sampled, because the text alone is so likely there that no call could reach prune_below. A partition a sampling recipe. Writer: stages/sampling.py.';
comment on column pruned_positions.sampling_recipe_id is 'The sampling''s recipe.';
comment on column pruned_positions.document_id is 'The document.';
comment on column pruned_positions.paragraph is 'The paragraph, as in filter_decisions.';
comment on column pruned_positions.position_token is 'The token before which a call would stand, from 0, in the tokens of the paragraph.';
comment on column pruned_positions.position_char is 'The character of documents.text before which a call would stand, from 0.';
comment on column pruned_positions.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column pruned_positions.loss_without_call is 'L(nothing), nats, with the whole text before the position: no call here can save more, since L- is at most this and L+ at least 0.';

-- A generated column is changed by making it anew. The views that read it go with it; they are made anew after the migrations.
alter table call_losses drop column loss_reduction cascade;
alter table call_losses
    add column loss_without_call_full_context double precision check (loss_without_call_full_context >= 0 and loss_without_call_full_context < 'Infinity'),
    add column number_format text check (number_format in ('float32', 'bfloat16', 'float16')),
    -- least() passes over nulls, so that the bound is the smallest of the losses that are known.
    add column reduction_bound double precision
        generated always as (least(loss_without_call, loss_without_result, loss_without_call_full_context) - coalesce(loss_with_result, 0)) stored,
    add column loss_reduction double precision
        generated always as (
            case when loss_without_call is not null and loss_without_result is not null
                 then least(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
            end) stored;
comment on column call_losses.loss_without_call is 'L(nothing): weighted loss of the tokens after the call''s position, without a call, nats. With a context window: given the last tokens before the position alone, as the other two.';
comment on column call_losses.loss_without_call_full_context is 'L(nothing) given the whole text before the position, nats, where the others were computed in a context window: no call wins because context was withheld. Null without a window.';
comment on column call_losses.number_format is 'float32, bfloat16 or float16: the numbers in which the losses were computed. Null where none were.';
comment on column call_losses.reduction_bound is 'The most that loss_reduction can be by the losses that are known, nats: loss_reduction itself where all are. With reason pruned_below it is below the run''s prune_below.';
comment on column call_losses.loss_reduction is 'L- - L+ = min(loss_without_call, loss_without_result, loss_without_call_full_context where there is one) - loss_with_result, nats. Counts only where reason is null; null for a pruned call.';
comment on column call_losses.reason is 'Why the call was not scored or its losses do not count (the tool''s reason, repeats_document_text, loss_not_finite; pruned_below: the losses that were computed prove that it cannot reach prune_below); null for a scored call.';

create function kept_calls_at(run text, tool_name text, threshold double precision)
    returns table (
        document_id uuid, call_id uuid, text_before text, call_text text, result text, text_after text,
        loss_reduction double precision, releasable boolean)
    language plpgsql stable
as $$
declare
    pruned_below double precision;
begin
    select t.prune_below into pruned_below from run_tools t where t.run_id = run and t.tool = tool_name;
    if pruned_below is null then
        raise exception 'run %: expected a started run with %, found none', run, tool_name
            using hint = 'The table run_tools lists the tools of each run.';
    end if;
    if threshold is null or not (threshold >= pruned_below) then
        raise exception 'run %, %: expected a threshold of at least % nats, found %: calls below were not all computed',
            run, tool_name, pruned_below, threshold
            using hint = format('Start a run with prune_below at or below %s (0 computes every call).', threshold);
    end if;
    return query
        select s.document_id, s.call_id, s.text_before, s.call_text, s.result, s.text_after, s.loss_reduction,
               not s.input_only_after
        from scored_calls s
        where s.run_id = run and s.tool = tool_name and s.loss_reduction >= threshold;
end
$$;
comment on function kept_calls_at(text, text, double precision) is 'The calls of one tool in one run that save at least this many nats, as in the view kept_calls. Refuses a threshold below the run''s prune_below, where the answer would not be exact.';
