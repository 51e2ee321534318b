-- What every other threshold would keep, for the sliders of the page in the Airflow UI: calls by their loss reduction, stored with a finished
-- run as its other numbers are. Runs that finished before this migration have no rows; the view reduction_histogram counts those of them that
-- are asked about.

create function reduction_bucket(nats double precision)
    returns integer
    language sql immutable parallel safe
    return cast(floor(least(nats, 1000000.0) * 20) as integer)
        -- The product is rounded. A bound is the number that its decimals are read as, so that a call at 0.15 is not below 0.15.
        + case
            when nats < floor(least(nats, 1000000.0) * 20) / 20 then -1
            when nats >= (floor(least(nats, 1000000.0) * 20) + 1) / 20 and nats < 1000000.0 then 1
            else 0
        end;
comment on function reduction_bucket(double precision) is 'The interval of 0.05 nats that a loss reduction lies in: k for k / 20 <= nats < (k + 1) / 20. Of a million nats and more: the one of a million.';

create table finished_run_reductions (
    run_id           text not null,
    tool             text not null,
    bucket           integer not null,
    calls            bigint not null check (calls >= 0),
    texts            bigint not null check (texts >= 0),
    releasable_calls bigint not null check (releasable_calls >= 0),
    placebos         bigint not null check (placebos >= 0),
    primary key (run_id, tool, bucket),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_reductions is 'The rows of the view reduction_histogram for finished runs. Writer: runs/numbers.py.';
comment on column finished_run_reductions.run_id is 'The run.';
comment on column finished_run_reductions.tool is 'The tool''s name.';
comment on column finished_run_reductions.bucket is 'Loss reductions from bucket / 20 nats to below (bucket + 1) / 20.';
comment on column finished_run_reductions.calls is 'Calls that save so much, and carry tau_information where the run has such a bound.';
comment on column finished_run_reductions.texts is 'Texts whose best such call saves so much.';
comment on column finished_run_reductions.releasable_calls is 'Of calls those whose input does not occur only after them.';
comment on column finished_run_reductions.placebos is 'Sampled placebos that save so much, and carry tau_information where the run has such a bound.';
