-- What a tool's stages wrote in a run, before it counts as done; some claims hold for a release's files, too.
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.

-- name: calls_removed_give_the_text_back
-- fail: the text back, byte for byte, after its calls are taken out
-- tool: checked_texts
-- files: checked_texts
-- remedy: Read the text and its calls in the view candidates: a text that holds a call of the tool already can take no other.
select document_id, gives_text_back from {batch} where gives_text_back is not true

-- name: enough_texts_are_kept
-- fail: at least as many texts with a kept call as the run's min_kept_texts
-- tool: yields
-- remedy: The view threshold_counts shows how many texts other thresholds keep; min_kept_texts is a choice of the run.
select tool, kept_texts, min_kept_texts from {batch} where kept_texts < min_kept_texts

-- name: every_document_is_in_the_ledger
-- fail: a ledger row for every stage that a document passes (else clear the shards of this tool, not this check: they do what is undone)
-- tool: ledger
-- remedy: The tool's shards do what is undone, and then the check passes.
select stage_of_document, ledger_rows from {batch} where ledger_rows <> 1

-- name: every_pruned_position_is_stored
-- fail: as many rows in pruned_positions as the ledger counts positions pruned
-- tool: samples
select stage_of_document, pruned_in_ledger, pruned_found from {batch} where pruned_in_ledger <> pruned_found

-- name: every_sample_is_accounted_for
-- fail: samples and calls that the tool proposed = candidates + duplicates + rejected ones
-- tool: samples
select stage_of_document, items_in, items_out from {batch} where items_in <> items_out

-- name: false_discovery_rate_is_allowed
-- fail: a false-discovery rate of at most the run's max_false_discovery_rate
-- tool: rates
-- remedy: The view threshold_counts shows what higher thresholds keep; max_false_discovery_rate is a choice of the run.
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored, max_false_discovery_rate
from {batch}
where false_discovery_rate > max_false_discovery_rate

-- name: false_discovery_rate_is_low
-- warn: a false-discovery rate of at most 0.2
-- tool: rates
-- remedy: A higher threshold, or the keep rule probability, keeps fewer calls by chance.
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored from {batch}
    where false_discovery_rate > 0.2

-- name: ledger_equals_rows
-- fail: as many rows as the ledger says and the stage before asks for
-- tool: ledger
select stage_of_document, rows_written, rows_found, rows_expected
from {batch}
where rows_written <> rows_found or rows_found <> rows_expected

-- name: most_samples_have_an_end
-- warn: an end within max_call_tokens for at least half of the samples
-- tool: yields
-- remedy: A larger max_call_tokens lets more samples end.
select tool, without_end, samples from {batch} where 2 * without_end > samples

-- name: positions_lie_inside_the_text
-- fail: positions after the start and before the end of the text
-- tool: calls
-- files: checked_calls
select call_id, position_char, text_length
from {batch}
where (position_char >= 1 and position_char < text_length) is not true

-- name: recipes_are_described
-- fail: each recipe of the tool described in `recipes` for its stage and tool
-- tool: recipes
-- remedy: Start a run with the same choices, which describes them again, or restore the rows from a backup.
select stage, recipe_id, described from {batch} where not described

-- name: some_call_is_kept
-- warn: at least one kept call
-- tool: yields
-- remedy: The view threshold_counts shows what lower thresholds would keep.
select tool, kept_calls from {batch} where kept_calls < 1

-- name: what_was_pruned_cannot_be_kept
-- fail: a bound below prune_below for every pruned position and call
-- tool: pruned
select pruned, bound, prune_below from {batch} where (bound < prune_below) is not true
