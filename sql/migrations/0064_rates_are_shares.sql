-- A false-discovery rate is a share of the kept calls, so it is at most 1. The counts that it follows from stay as they are.

update placebo_rates
set false_discovery_rate = least(false_discovery_rate, 1), rate_low = least(rate_low, 1), rate_high = least(rate_high, 1)
where rate_high > 1;
alter table placebo_rates
    drop constraint placebo_rates_false_discovery_rate_check,
    add constraint placebo_rates_false_discovery_rate_check check (false_discovery_rate between 0 and 1),
    drop constraint placebo_rates_check2,
    add constraint placebo_rates_rate_high_check check (rate_high between rate_low and 1);
comment on column placebo_rates.false_discovery_rate is 'Placebos expected among all calls with a result, over calls: (placebos / placebos_scored) (calls_sampled / sample_share) / calls, at most 1. Null where a divisor is 0.';

-- A release's rates say on how many placebos they rest.
update dataset_releases release
set rates = (
    select coalesce(jsonb_object_agg(known.tool, jsonb_build_object(
               'false_discovery_rate', rate.false_discovery_rate, 'rate_low', rate.rate_low, 'rate_high', rate.rate_high,
               'placebos_scored', rate.placebos_scored)), '{}')
    from jsonb_object_keys(release.rates) as known (tool)
    join run_tools rt on rt.run_id = release.run_id and rt.tool = known.tool
    join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool and rate.threshold = rt.keep_threshold)
where rates is not null;
comment on column dataset_releases.rates is 'False-discovery rates on its card, by tool, each with its interval and the number of placebos that it rests on: those of the run that made it first. The rates of each run are in threshold_counts. Null where the card is not known.';
