-- Which losses float32 computes again is one choice; the ledger counts the calls that rounding may decide.

create or replace function counts_a_loss(reason text)
    returns boolean
    language sql immutable parallel safe
    return reason not in ('paragraphs', 'positions', 'samples', 'candidates', 'calls', 'inputs', 'executed', 'from_cache',
                          'with_result', 'scored', 'within_rounding', 'verified_in_float32', 'with_placebos', 'without_placebos',
                          'placebos');

update annotation_runs
set parameters = parameters - 'loss_format'
    || jsonb_build_object('verify_in_float32', case parameters ->> 'loss_format' when 'float32' then 'all' else 'on' end)
where parameters ? 'loss_format';
