insert into placebo_pools (placebo_recipe_id, scoring_recipe_id, corpus_id, placebos, placebo_sample, documents, calls, sample_share)
values (:placebo_recipe_id, :scoring_recipe_id, :corpus_id, :placebos, :placebo_sample, :documents, :calls, :sample_share)
on conflict do nothing
