-- Results of other calls that a placebo is drawn from.

-- name: known
-- The newest pool of a scoring recipe over a corpus, drawn with these numbers when the corpus had at least
-- half as many documents as the run.
with run as (
    select count(*) as documents
    from members_to_do(:members)
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

-- name: use
update run_tools set placebo_recipe_id = :placebo_recipe_id
where run_id = :run_id and tool = :tool and placebo_recipe_id is distinct from :placebo_recipe_id

-- name: size
-- How many documents a run has, and how many of its calls have a result and losses.
select count(distinct member.variant_id) as documents, count(loss.call_id) as calls
from members_to_do(:members) member
left join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = member.variant_id
   and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')

-- name: draw
-- The calls of a run that have a result and losses and the smallest ids, in their order, with their texts.
select loss.call_id, member.document_id, loss.result
from members_to_do(:members) member
join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = member.variant_id
   and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
order by loss.call_id, member.document_id
limit :calls

-- name: insert
insert into placebo_pools (placebo_recipe_id, scoring_recipe_id, corpus_id, placebos, placebo_sample,
    documents, calls, sample_share)
values (:placebo_recipe_id, :scoring_recipe_id, :corpus_id, :placebos, :placebo_sample, :documents, :calls,
    :sample_share)
on conflict do nothing

-- name: by_id
select placebos, sample_share, calls, documents from placebo_pools
    where placebo_recipe_id = :placebo_recipe_id

-- name: results
select source, call_id, document_id, result from placebo_pool_results
    where placebo_recipe_id = :placebo_recipe_id order by source
