-- A run may spare calls that no release takes: the choice score_unreleasable.

comment on column call_losses.reason is 'Why the call was not scored or its losses do not count (the tool''s reason, repeats_document_text, loss_not_finite; pruned_below: the losses that were computed prove that it cannot reach prune_below; input_only_after: its input stands in the text only after it, and the run does not score such calls); null for a scored call.';
