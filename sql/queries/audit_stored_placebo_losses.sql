-- Placebos of documents under a recipe, to be compared with placebos that are computed again; not those of documents that drew a result of
-- a text which was forgotten since.
select placebo.*
from placebo_losses placebo
where placebo.placebo_recipe_id = :recipe_id
  and placebo.document_id = any(cast(:document_ids as uuid[]))
  and not exists (
      select from placebo_losses other
      where other.placebo_recipe_id = :recipe_id and other.document_id = placebo.document_id and other.source is not null
        and not exists (
            select from placebo_pool_results pooled
            where pooled.placebo_recipe_id = :recipe_id and pooled.source = other.source))
