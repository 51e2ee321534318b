create function kept_calls_of(run text default '')
    returns table (
        run_id text, tool text, document_id text, call_id text, text_before text, call_text text,
        result text, text_after text, loss_without_call double precision,
        loss_without_result double precision, loss_with_result double precision,
        loss_reduction double precision, placebo_reduction double precision, information double precision,
        placebos bigint, position_char integer, position_token integer,
        position_probability double precision, paragraph integer, call_input text, effective_input text,
        sample_count integer, input_only_after boolean, result_rank integer,
        loss_without_call_full_context double precision, number_format text, url text, document_date date,
        variant_id text, sampling_recipe_id text, execution_recipe_id text, scoring_recipe_id text,
        result_follows text, document_uuid uuid, variant_uuid uuid, call_uuid uuid,
        keep_threshold double precision, tau_information double precision, releasable boolean)
    language sql stable parallel safe
begin atomic
    select s.*, not s.input_only_after as releasable
    from scored_calls_of(run, only_kept => true) s;
end;
comment on function kept_calls_of is 'The view kept_calls about one run, as scored_calls_of.';

create view kept_calls as
select * from kept_calls_of(null);
comment on view kept_calls is 'The run''s keep rule: the scored calls with loss_reduction >= keep_threshold (Toolformer, section 2), and with information >= tau_information if the run has such a bound. A release takes those that are releasable.';
comment on column kept_calls.releasable is 'Whether a release may take it: its input does not occur only after the call.';
call inherit_comments('kept_calls', 'scored_calls');
