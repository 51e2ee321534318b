-- The newest pool of a scoring recipe over a corpus, drawn with these numbers when the corpus had at least half as many documents as the run.
with run as (
    select count(*) as documents
    from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record)
)
select pool.placebo_recipe_id
from placebo_pools pool
cross join run
where pool.scoring_recipe_id = :scoring_recipe_id
  and pool.corpus_id = :corpus_id
  and pool.placebos = :placebos
  and pool.placebo_sample = :placebo_sample
  and run.documents <= 2 * pool.documents
order by pool.drawn_at desc, pool.placebo_recipe_id
limit 1
