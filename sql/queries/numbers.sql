-- Numbers of a run, stored when it ends.

-- name: tools
select tool from run_tools where run_id = :run_id order by tool

-- name: forget
-- Delete the stored numbers of a run, so that the views compute them.
delete from finished_run_thresholds where run_id = :run_id;
delete from finished_run_progress where run_id = :run_id;
delete from finished_run_gains where run_id = :run_id;
delete from finished_run_yield where run_id = :run_id;
delete from finished_run_work where run_id = :run_id;
delete from forgotten_numbers where run_id = :run_id and kind = 'finished_run';
update annotation_runs set numbers_stored_at = null where run_id = :run_id

-- name: counted
-- What the functions of 07_numbers.sql take, each a row as text: a tool of a run, the run, and its base, the
-- newest run with the same recipes and keep rule from whose numbers of a kind (finished_run, placebo_counts,
-- checked_yields) those of the tool follow; null if there is none. A recipe includes those of the stages
-- before. None of the base's rows was deleted since.
select cast(rt as text) as rt, cast(run as text) as run, cast(base.earlier as text) as base,
    base.run_id as base_run_id,
       thresholds_of(rt) as thresholds
from run_tools rt
join annotation_runs run using (run_id)
left join lateral (
    select earlier, earlier.run_id
    from run_tools base_tool
    join annotation_runs earlier using (run_id)
    where base_tool.tool = rt.tool and base_tool.scoring_recipe_id = rt.scoring_recipe_id
      and base_tool.keep_threshold = rt.keep_threshold and base_tool.prune_below = rt.prune_below
      and base_tool.reads_record = rt.reads_record and base_tool.keep_rule = rt.keep_rule
      and base_tool.last_document_id is null and rt.last_document_id is null
      and (base_tool.placebo_recipe_id is not distinct from rt.placebo_recipe_id or :kind = 'checked_yields'
          and rt.keep_rule = 'paper')
      and earlier.corpus_id = run.corpus_id and earlier.corpus_version <= run.corpus_version
      and (earlier.run_id <> run.run_id or :kind = 'checked_yields')
      and case :kind
          when 'finished_run' then
              (select bool_and(done = total)
                  and bool_or(stage = 'placebo') = has_placebos(run.parameters, rt.placebo_recipe_id)
               from finished_run_progress progress where progress.run_id = earlier.run_id
                   and progress.tool = rt.tool)
              and exists (
                  select from stored_runs stored
                  join corpora corpus on corpus.corpus_id = earlier.corpus_id
                  where stored.run_id = earlier.run_id
                    and stored.stored_at > coalesce(corpus.memberships_deleted_at, '-infinity')
                    -- What was forgotten since is subtracted (forgotten_numbers).
                    and not exists (
                        select document_id from forgotten_documents
                            where coalesce(removed_at, 'infinity') >= stored.stored_at
                        except
                        select unnest(gone.document_ids)
                        from forgotten_numbers gone
                        where gone.run_id = earlier.run_id and gone.tool = rt.tool
                            and gone.kind = 'finished_run')
                    and not exists (
                        select from stages_of(rt) join recipes using (recipe_id)
                            where dropped_at >= stored.stored_at))
          else
              -- The check that counted them found every document done, and still would.
              exists (
                  select from finished_work finished
                  join recipes recipe using (recipe_id)
                  where finished.recipe_id = case :kind when 'placebo_counts' then rt.placebo_recipe_id
                      else rt.scoring_recipe_id end
                    and finished.corpus_id = earlier.corpus_id and finished.version = earlier.corpus_version
                    and finished.ordinal_limit = coalesce(earlier.ordinal_limit, 2147483647)
                    and finished.finished_at > coalesce(recipe.dropped_at, '-infinity'))
              and case :kind
                  when 'placebo_counts' then
                      exists (
                          select from placebo_rates rate
                          where rate.run_id = earlier.run_id and rate.tool = rt.tool
                              and rate.placebo_recipe_id = rt.placebo_recipe_id)
                      and exists (select from placebo_counts counted where counted.run_id = earlier.run_id
                          and counted.tool = rt.tool)
                  else exists (select from checked_yields counted where counted.run_id = earlier.run_id
                      and counted.tool = rt.tool)
              end
      end
    order by earlier.ordinal_limit is not distinct from run.ordinal_limit desc, earlier.corpus_version desc,
        earlier.started_at desc
    limit 1
) base on true
where rt.run_id = :run_id and rt.tool = :tool

-- name: count
-- The numbers of a tool of a run, as the views would show them.
insert into finished_run_thresholds (run_id, tool, threshold, calls, texts, releasable_calls)
select :run_id, :tool, counted.*
from counted_thresholds(cast(:rt as run_tools), cast(:run as annotation_runs),
    cast(:base as annotation_runs)) counted;
insert into finished_run_gains (run_id, tool, bucket, calls, texts, releasable_calls, placebos)
select :run_id, :tool, counted.*
from counted_histogram(cast(:rt as run_tools), cast(:run as annotation_runs),
    cast(:base as annotation_runs)) counted;
insert into finished_run_progress (run_id, tool, step, stage, done, total)
select :run_id, :tool, step, stage, done, total
from counted_progress(cast(:rt as run_tools), cast(:run as annotation_runs), cast(:base as annotation_runs));
insert into finished_run_yield (run_id, tool, step, stage, reason, is_loss, count, documents)
select :run_id, :tool, counted.*
from counted_yield(cast(:rt as run_tools), cast(:run as annotation_runs),
    cast(:base as annotation_runs)) counted

-- name: store
-- What a run did itself; and from now on the views show its stored numbers.
insert into finished_run_work (run_id, tool, stage, micro_batches, documents, rows_written, seconds)
select run_id, tool, stage, count(*), sum(documents), sum(rows_written), sum(seconds)
from micro_batches
where run_id = :run_id
group by run_id, tool, stage;
update annotation_runs
set previous_run_id = coalesce(previous_run_id, :previous_run_id),
    numbers_stored_at = now(),
    numbers_batch_id = (select coalesce(max(batch_id), 0) from micro_batches)
where run_id = :run_id
