-- Delete what a recipe has in tables without partitions: first of all the mark that its work is finished.
with marks as (
    delete from finished_work where recipe_id = :recipe_id
),
ledger as (
    delete from stage_ledger where recipe_id = :recipe_id
),
decisions as (
    delete from filter_decisions where filter_recipe_id = :recipe_id
),
lost as (
    delete from lost_samples where sampling_recipe_id = :recipe_id
),
failed as (
    delete from failed_documents where recipe_id = :recipe_id
),
tries as (
    delete from micro_batch_tries where recipe_id = :recipe_id
),
pools as (
    delete from placebo_pools where placebo_recipe_id = :recipe_id
)
update recipes set dropped_at = now() where recipe_id = :recipe_id
