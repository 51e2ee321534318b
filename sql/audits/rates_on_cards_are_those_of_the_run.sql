-- fail: the false-discovery rates that the run had counted when its release was made
-- release: changed dataset_releases
-- remedy: Compare both with the release's card (README.md), and restore the wrong row from a backup.
select release.release_id || ' rates' as place, format('%s on the card, %s in placebo_rates', release.rates, counted.rates) as found
from dataset_releases release
cross join lateral (
    select max(rate.counted_at) as counted_at,
           coalesce(
               jsonb_object_agg(rate.tool, jsonb_build_object(
                   'false_discovery_rate', rate.false_discovery_rate, 'rate_low', rate.rate_low, 'rate_high', rate.rate_high,
                   'placebos_scored', rate.placebos_scored))
               filter (where rate.false_discovery_rate is not null), '{}') as rates
    from jsonb_array_elements(release.definition -> 'tools') part
    join run_tools rt on rt.run_id = release.run_id and rt.tool = part.value ->> 'tool'
    join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool and rate.threshold = rt.keep_threshold
) counted
where release.release_id = any(cast(:release_ids as text[]))
  -- Rates that were counted again since say nothing of the card.
  and counted.counted_at <= release.created_at
  and release.rates <> counted.rates
