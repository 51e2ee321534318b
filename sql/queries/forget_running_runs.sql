-- Runs that are not finished and are over this corpus, or use one of the texts: by their version of their corpus, by the pool of their
-- placebos, or by their release.
select run.run_id
from annotation_runs run
where run.state = 'running'
  and (run.corpus_id = :corpus_id
       or exists (
           select
           from texts_to_forget text
           join corpus_documents member on member.document_id = text.document_id
           where member.corpus_id = run.corpus_id
             and member.first_version <= run.corpus_version
             and (member.left_version is null or member.left_version > run.corpus_version)
             and member.ordinal < coalesce(run.ordinal_limit, 2147483647)
       )
       or exists (
           select
           from run_tools tool
           join placebo_pool_results pooled on pooled.placebo_recipe_id = tool.placebo_recipe_id
           join texts_to_forget text on text.document_id = pooled.document_id
           where tool.run_id = run.run_id
       )
       or exists (
           select
           from texts_to_forget text
           join release_calls call on call.document_id = text.document_id
           where call.release_id = run.chained_release_id
              or call.release_id = (select used.release_id from run_releases used where used.run_id = run.run_id)
       ))
order by run.run_id
