-- What the checks of a run and of its release read: temporary tables (checked_...), and rows to check, which
-- a claim of sql/audits names and has in `{batch}`.

-- name: yield_record
insert into checked_yields (run_id, tool, judged_calls, kept_calls, releasable_calls, kept_texts)
values (:run_id, :tool, :judged_calls, :kept_calls, :releasable_calls, :kept_texts)
on conflict (run_id, tool) do update
set judged_calls = excluded.judged_calls,
    kept_calls = excluded.kept_calls,
    releasable_calls = excluded.releasable_calls,
    kept_texts = excluded.kept_texts

-- name: finished
-- All rows of a tool in a run are there and passed their checks.
insert into finished_work (recipe_id, corpus_id, version, ordinal_limit, run_id)
select recipe_id, :corpus_id, :at_version, :below_ordinal, :run_id
from unnest(cast(:recipe_ids as text[])) as recipe (recipe_id)
order by recipe_id
on conflict (recipe_id, corpus_id, version, ordinal_limit) do update set run_id = excluded.run_id,
    finished_at = excluded.finished_at

-- name: tables_of_tool
-- What the rows of a tool are checked by, each read once. For the one session of a check: its hash tables
-- stay in memory up to some 100,000 documents, and no statement is compiled for a second.
set work_mem = '64MB';
set jit = off;

-- 1. The documents to check: those of the run that no passed check covers, as the tool reads them. Their
--    texts are read here alone.
create temporary table checked_members as
select
    member.variant_id,
    char_length(document.text) as text_length,
    strpos(document.text, :call_opening) > 0 as holds_call
from members_to_do(:members) member
left join documents document on document.document_id = member.variant_id;
analyze checked_members;  -- else Postgres would take them for a thousand, however many they are

-- 2. The calls in checked_members, each once with its losses and its result: all other rows to check of calls
--    are made of these.
--   is_candidate, is_judged   whether it has a row in candidate_calls, and in call_losses
--   is_answered               whether its input has a result, or the reason why not
--   is_releasable             kept, and its input stands not only after it
--   is_plainly_written        taken out of its text it gives the text back, by the rules that call_syntax.py
--                             names
create temporary table checked_work as
with candidate as (
    select call.*, member.text_length, member.holds_call
    from checked_members member
    join candidate_calls call on call.document_id = member.variant_id
    where call.sampling_recipe_id = :sampling_recipe_id
),
judged as (
    select loss.*
    from checked_members member
    join call_losses loss on loss.document_id = member.variant_id
    where loss.scoring_recipe_id = :scoring_recipe_id
)
select
    coalesce(candidate.document_id, judged.document_id) as document_id,
    coalesce(candidate.call_id, judged.call_id) as call_id,
    candidate.document_id is not null as is_candidate,
    judged.document_id is not null as is_judged,
    result.input_key is not null as is_answered,
    candidate.position_char,
    candidate.text_length,
    judged.reason,
    judged.gain_bound,
    run_keeps(judged.reason, judged.gain_bound, :keep_threshold, judged.probability_with, placebo.probability)
        and not candidate.input_only_after as is_releasable,
    not candidate.holds_call
        and candidate.position_char between 0 and candidate.text_length
        and candidate.call_input !~ :not_in_a_call as is_plainly_written
from candidate
full join judged on judged.document_id = candidate.document_id and judged.call_id = candidate.call_id
left join call_information placebo
    on placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = judged.document_id
        and placebo.call_id = judged.call_id
left join call_results result
    on result.tool = :tool
   and result.tool_version = :tool_version
   and result.input_key = candidate.input_key;

-- 3. The documents in checked_members: what the filter decided, the rows that exist, and what the ledger says
--    (null: the stage is not done).
create temporary table checked_documents as
with decided as (
    select decision.document_id, count(*) as decisions, bool_or(decision.kept) as is_kept
    from checked_members member
    join filter_decisions decision on decision.document_id = member.variant_id
    where decision.filter_recipe_id = :filter_recipe_id
    group by decision.document_id
),
worked as (
    select
        document_id,
        count(*) filter (where is_candidate) as calls,
        count(*) filter (where is_candidate and is_answered) as answered,
        count(*) filter (where is_judged) as losses
    from checked_work
    group by document_id
),
placebo as (
    select placebo.document_id, count(*) as placebos
    from checked_members member
    join placebo_losses placebo on placebo.document_id = member.variant_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
    group by placebo.document_id
),
pruned as (
    select position.document_id, count(*) as positions
    from checked_members member
    join pruned_positions position on position.document_id = member.variant_id
    where position.sampling_recipe_id = :sampling_recipe_id
    group by position.document_id
)
select
    member.variant_id as document_id,
    coalesce(decided.is_kept, false) as is_kept,
    coalesce(decided.decisions, 0) as decisions,
    coalesce(worked.calls, 0) as calls,
    coalesce(worked.answered, 0) as answered,
    coalesce(worked.losses, 0) as losses,
    coalesce(pruned.positions, 0) as pruned_found,
    filtered.rows_written as filtered,
    sampled.rows_written as sampled,
    executed.rows_written as executed,
    scored.rows_written as scored,
    cast(:placebo_recipe_id as text) is not null as asks_for_placebos,
    placed.rows_written as placed,
    coalesce(placebo.placebos, 0) as placebos,
    coalesce(cast(sampled.counts ->> 'positions_pruned_below' as bigint), 0) as pruned_in_ledger,
    coalesce(cast(sampled.counts ->> 'samples' as bigint), 0) as samples,
    coalesce(cast(sampled.counts ->> 'proposals' as bigint), 0) as proposals,
    coalesce(cast(sampled.counts ->> 'sample_without_end' as bigint), 0) as without_end,
    coalesce(cast(sampled.counts ->> 'candidates' as bigint), 0)
        + coalesce(cast(sampled.counts ->> 'duplicates_merged' as bigint), 0)
        + coalesce(
            (select sum(cast(count.value as bigint))
             from jsonb_each_text(sampled.counts) count
             where starts_with(count.key, 'sample_') or starts_with(count.key, 'proposal_')),
                 0) as samples_accounted_for
from checked_members member
left join decided on decided.document_id = member.variant_id
left join worked on worked.document_id = member.variant_id
left join pruned on pruned.document_id = member.variant_id
left join placebo on placebo.document_id = member.variant_id
left join stage_ledger filtered
    on filtered.document_id = member.variant_id and filtered.recipe_id = :filter_recipe_id
        and filtered.stage = 'filter'
left join stage_ledger sampled
    on sampled.document_id = member.variant_id and sampled.recipe_id = :sampling_recipe_id
        and sampled.stage = 'sample'
left join stage_ledger executed
    on executed.document_id = member.variant_id and executed.recipe_id = :execution_recipe_id
        and executed.stage = 'execute'
left join stage_ledger scored
    on scored.document_id = member.variant_id and scored.recipe_id = :scoring_recipe_id
        and scored.stage = 'score'
left join stage_ledger placed
    on placed.document_id = member.variant_id and placed.recipe_id = :placebo_recipe_id
        and placed.stage = 'placebo';

-- 4. The texts with calls to release that are all plainly written, and so give the text back. The others are
--    tried outside of Postgres.
create temporary table checked_texts as
select cast(document_id as text) as document_id, true as gives_text_back
from checked_work
where is_releasable
group by document_id
having bool_and(is_plainly_written is true)

-- name: calls
-- Rows to check: the candidate calls, with the length of their texts.
select call_id, position_char, text_length from checked_work where is_candidate

-- name: yields
-- Row to check: how much was kept of a tool in a run (kept_counts), the run's bounds, and how many of its
-- samples the call length cut off.
select cast(:tool as text) as tool, cast(:kept_calls as bigint) as kept_calls,
       cast(:kept_texts as bigint) as kept_texts, cast(:min_kept_texts as bigint) as min_kept_texts,
       (select coalesce(sum(samples), 0) from checked_documents where is_kept) as samples,
       (select coalesce(sum(without_end), 0) from checked_documents where is_kept) as without_end

-- name: ledger
-- Rows to check: one for each document and stage of a tool that it passes; the ledger, and the rows that
-- exist.
--   ledger_rows                      1 if the stage has finished the document
--   rows_written, rows_found         rows by the ledger (execute: calls with a result or a reason), and rows
--   that exist
--   rows_expected                    rows that the stage before asks for
select
    stages.stage || ' of ' || cast(document_id as text) as stage_of_document,
    case when in_ledger is null then 0 else 1 end as ledger_rows,
    -- Results are shared, so the ledger's own number is smaller.
    case stages.stage when 'execute' then answered else coalesce(in_ledger, 0) end as rows_written,
    rows_found,
    rows_expected
from checked_documents
cross join lateral (values
    ('filter', filtered, decisions, decisions),
    ('sample', sampled, calls, calls),
    ('execute', executed, calls, calls),
    ('score', scored, losses, calls),
    ('placebo', placed, placebos, placebos)
) as stages (stage, in_ledger, rows_found, rows_expected)
where stages.stage = 'filter' or is_kept and (stages.stage <> 'placebo' or asks_for_placebos)

-- name: samples
-- Rows to check: the documents that were sampled.
--   items_in, items_out              samples drawn and calls that the tool proposed, and those that became
--   candidates, duplicates or
--                                    were rejected with a reason
--   without_end                      of the samples drawn, those that the call length cut off
--   pruned_in_ledger, pruned_found   positions that were not sampled, by the ledger and by their rows
select
    'sample of ' || cast(document_id as text) as stage_of_document,
    samples + proposals as items_in,
    samples_accounted_for as items_out,
    without_end,
    pruned_in_ledger,
    pruned_found
from checked_documents
where is_kept

-- name: pruned
-- Rows to check: what was not computed in checked_members. Each pruned position and call, with the most that
-- a call could gain.
select found.pruned, found.bound, tool.prune_below
from (
    select 'position ' || position.position_char || ' of ' || cast(position.document_id as text) as pruned,
           position.gain_bound as bound
    from checked_members member
    join pruned_positions position on position.document_id = member.variant_id
    where position.sampling_recipe_id = :sampling_recipe_id
    union all
    select 'call ' || cast(call_id as text), gain_bound
    from checked_work
    where is_judged and reason = 'pruned_below'
) found
join run_tools tool on tool.run_id = :run_id and tool.tool = :tool

-- name: rates
-- Row to check: the false-discovery rate of a tool in a run at its own threshold (placebo_rates; no row with
-- fewer than :fewest_placebos placebos), and its bound.
select rate.tool, round(cast(rate.false_discovery_rate as numeric), 3) as false_discovery_rate,
    round(cast(rate.rate_low as numeric), 3) as rate_low,
       round(cast(rate.rate_high as numeric), 3) as rate_high, rate.placebos_scored,
       cast(:max_false_discovery_rate as double precision) as max_false_discovery_rate
from placebo_rates rate
where rate.run_id = :run_id and rate.tool = :tool and rate.threshold = :keep_threshold
    and rate.placebos_scored >= :fewest_placebos

-- name: recipes
-- Rows to check: the four recipes of one tool in one run, and whether `recipes` describes each for its stage
-- and tool.
select recipe.stage, recipe.recipe_id, described.recipe_id is not null as described
from run_tools rt
cross join stages_of(rt) recipe
left join recipes described
    on described.recipe_id = recipe.recipe_id and described.stage = recipe.stage and described.tool = rt.tool
where rt.run_id = :run_id and rt.tool = :tool and recipe.step <= 4

-- name: texts_in_doubt
-- The next texts that tables_of_tool left out of checked_texts, in the order of their ids, with the calls
-- that would be released.
select document.document_id, document.text, calls.positions, calls.inputs, calls.results
from (
    select document_id
    from checked_work
    where is_releasable and document_id > cast(:after as uuid)
    group by document_id
    having not bool_and(is_plainly_written is true)
    order by document_id
    limit :page_size
) doubtful
join documents document on document.document_id = doubtful.document_id
cross join lateral (
    select
        array_agg(call.position_char order by call.position_char, call.call_id) as positions,
        array_agg(call.call_input order by call.position_char, call.call_id) as inputs,
        array_agg(loss.result order by call.position_char, call.call_id) as results
    from checked_work work
    join candidate_calls call on call.document_id = work.document_id and call.call_id = work.call_id
    join call_losses loss on loss.document_id = work.document_id and loss.call_id = work.call_id
    where work.document_id = doubtful.document_id
      and work.is_releasable
      and call.sampling_recipe_id = :sampling_recipe_id
      and loss.scoring_recipe_id = :scoring_recipe_id
) calls
order by document.document_id

-- name: tables_of_release
-- Tables for the rows of a release, which are then loaded from its files.
create temporary table checked_texts (document_id text, call_count integer, gives_text_back boolean);
create temporary table checked_calls (
    call_id text,
    tool text,
    position_char integer,
    text_length integer,
    position_probability double precision,
    loss_without_call double precision,
    loss_without_result double precision,
    loss_without_call_full_context double precision,
    loss_with_result double precision,
    loss_reduction double precision,
    difference text
)

-- name: left_out_texts
-- The texts that a run's release leaves out for the evaluation data in them.
select document_id, text
from documents
where document_id in (select document_id from run_overlaps where run_id = :run_id and is_left_out)

-- name: overlaps
-- Rows to check: what the texts of a release, and those that it leaves out, share with evaluation data: as
-- found anew, and as stored.
select document_id, format('%s:%s %s', suite, data_set, question) as question,
       found.document_id is not null as is_found, stored.document_id is not null as is_stored,
       coalesce(stored.is_left_out, false)
           and exists (select from checked_texts held
               where held.document_id = cast(stored.document_id as text)) as is_left_out_and_in_it
from unnest(cast(:document_ids as uuid[]), cast(:suites as text[]), cast(:data_sets as text[]),
    cast(:questions as integer[]))
    as found (document_id, suite, data_set, question)
full join (select * from run_overlaps where run_id = :run_id) stored
    using (document_id, suite, data_set, question)

-- name: released_tools
-- Rows to check: the tools of a run, in the order in which they were chosen, with the number of their calls
-- in the release.
select chosen.tool, (select count(*) from checked_calls call where call.tool = chosen.tool) as released_calls
from unnest(cast(:tools as text[])) chosen (tool)

-- name: registration
-- Rows to check: what the release on S3 holds, and what is registered of it.
select compared.what, compared.on_s3, compared.registered
from run_releases made
join dataset_releases release on release.release_id = made.release_id
cross join lateral (values
    ('texts', (select cast(count(*) as text) from checked_texts), cast(release.documents as text)),
    ('calls', (select cast(count(*) as text) from checked_calls), cast(release.calls as text)),
    ('manifest', :manifest_sha256, release.manifest_sha256)
) as compared (what, on_s3, registered)
where made.run_id = :run_id

-- name: record
-- The newest outcome of a check replaces the one before.
insert into quality_results (run_id, subject, check_name, severity, success, observed, message)
values (:run_id, :subject, :check_name, :severity, :success, cast(:observed as jsonb), :message)
on conflict (run_id, subject, check_name) do update
set severity = excluded.severity,
    success = excluded.success,
    observed = excluded.observed,
    message = excluded.message,
    checked_at = excluded.checked_at
