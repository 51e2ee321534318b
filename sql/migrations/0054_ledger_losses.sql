-- Which counts of the ledger are losses is said once: the funnel of a run, and what the page shows while that is counted, had a list each.

create function counts_a_loss(reason text)
    returns boolean
    language sql immutable parallel safe
    return reason not in ('paragraphs', 'positions', 'samples', 'candidates', 'calls', 'inputs', 'executed', 'from_cache',
                          'with_result', 'scored', 'with_placebos', 'without_placebos', 'placebos');
comment on function counts_a_loss(text) is 'Whether a count of stage_ledger or micro_batches says that something was lost, and why; else it counts what is there.';
