-- A keep threshold is what the run or the tool says: nothing is added for the seconds or the price of a call.
drop table call_costs, measured_call_seconds cascade;
comment on column run_tools.keep_threshold is 'Nats: calls are kept where loss_reduction >= this. tau_f of the tool in this run (Toolformer, section 2).';
do $$
declare
    changed record;
begin
    if to_regproc('registration_hash') is null then
        return;  -- a new database has neither functions nor runs
    end if;
    for changed in
        select run_id, registered_hash = registration_hash(run) as is_proved
        from annotation_runs run
        where parameters ?| array['nats_per_second', 'nats_per_price', 'call_seconds']
    loop
        update annotation_runs set parameters = parameters - array['nats_per_second', 'nats_per_price', 'call_seconds']
        where run_id = changed.run_id;
        update annotation_runs run set registered_hash = registration_hash(run) where run_id = changed.run_id and changed.is_proved;
    end loop;
end
$$;
