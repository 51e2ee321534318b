-- What a call costs, for a run that asks for so many nats for each second or unit of price (runs/costs.py). The bound becomes part of
-- run_tools.keep_threshold, so that the keep rule stays is_kept.

create table measured_call_seconds (
    tool             text not null,
    tool_version     text not null,
    seconds          double precision not null check (seconds >= 0 and seconds < 'Infinity'),
    calls            bigint not null check (calls > 0),
    measured_version text not null,
    measured_at      timestamptz not null default now(),
    primary key (tool, tool_version)
);
comment on table measured_call_seconds is 'What a call of a tool takes, fixed once for each tool version by the first run that asks for it: later runs use what is stored, so that equal input gives equal rows. Delete a row to have it measured anew. Writer: runs/costs.py.';
comment on column measured_call_seconds.tool is 'The tool''s name.';
comment on column measured_call_seconds.tool_version is 'The tool''s version with its index, checkpoint or settings.';
comment on column measured_call_seconds.seconds is 'Median of call_results.seconds over the calls with a result, to two significant digits.';
comment on column measured_call_seconds.calls is 'Number of executions that it is the median of.';
comment on column measured_call_seconds.measured_version is 'The version whose executions were measured: an earlier one, where this one had executed nothing yet.';
comment on column measured_call_seconds.measured_at is 'When it was fixed.';

create table call_costs (
    run_id          text not null,
    tool            text not null,
    seconds         double precision check (seconds >= 0),
    nats_per_second double precision check (nats_per_second > 0),
    price           double precision check (price >= 0),
    price_unit      text,
    nats_per_price  double precision check (nats_per_price > 0),
    cost_threshold  double precision not null check (cost_threshold >= 0),
    primary key (run_id, tool),
    foreign key (run_id, tool) references run_tools,
    check ((seconds is null) = (nats_per_second is null)),
    check ((price is null) = (nats_per_price is null) and (price is null) = (price_unit is null)),
    check (seconds is not null or price is not null)
);
comment on table call_costs is 'What a call of each tool costs in a run that asks for nats_per_second or nats_per_price; other runs have no rows. Fixed when the run starts. Writer: stages/run_setup.py.';
comment on column call_costs.run_id is 'The run.';
comment on column call_costs.tool is 'The tool''s name.';
comment on column call_costs.seconds is 'Seconds of a call: the run''s call_seconds, or measured_call_seconds. Null where the run asks for no nats for a second.';
comment on column call_costs.nats_per_second is 'Nats that the run asks for, for each second.';
comment on column call_costs.price is 'Price of a call, by the tool. Null where the tool has none, or the run asks for no nats for it.';
comment on column call_costs.price_unit is 'What the price is counted in.';
comment on column call_costs.nats_per_price is 'Nats that the run asks for, for each unit of price.';
comment on column call_costs.cost_threshold is 'nats_per_second * seconds + nats_per_price * price: run_tools.keep_threshold is at least this, nats.';

comment on column run_tools.keep_threshold is 'Nats: calls are kept where loss_reduction >= this. tau_f of the tool in this run (Toolformer, section 2), or call_costs.cost_threshold where that is more.';
