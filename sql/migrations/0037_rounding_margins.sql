-- How far a loss reduction in a model's own number format may be from float32's: what decides near which thresholds float32 computes again.

create table rounding_margins (
    model_identity     text not null,
    device             text not null,
    number_format      text not null check (number_format in ('bfloat16', 'float16')),
    calls              integer not null check (calls > 0),
    mean_difference    double precision not null check (mean_difference >= 0),
    largest_difference double precision not null check (largest_difference >= mean_difference),
    margin             double precision not null check (margin >= largest_difference and margin < 'Infinity'),
    measured_at        timestamptz not null default now(),
    primary key (model_identity, device, number_format)
);
comment on table rounding_margins is 'Loss reductions of a few hundred calls computed in a model''s number format and in float32, once for each model, device and format; later runs use what is stored. Writer: runs/rounding.py.';
comment on column rounding_margins.model_identity is 'Weights and tokenizer.';
comment on column rounding_margins.device is 'Name of the GPU, or cpu.';
comment on column rounding_margins.number_format is 'bfloat16 or float16.';
comment on column rounding_margins.calls is 'Calls that were computed in both.';
comment on column rounding_margins.mean_difference is 'Mean difference of the two loss reductions of a call, nats.';
comment on column rounding_margins.largest_difference is 'Largest difference, nats.';
comment on column rounding_margins.margin is 'What is allowed for, nats: float32 computes calls again whose loss reduction is so near to a threshold, and nothing is pruned that is so near to prune_below.';
comment on column rounding_margins.measured_at is 'When it was measured.';

-- Until now float32 computed again whatever could be kept.
update annotation_runs
set parameters = parameters || '{"loss_format": "float32"}'
where parameters <> '{}' and not parameters ? 'loss_format';
