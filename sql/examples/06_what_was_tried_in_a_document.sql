-- What was tried in a document, and with what losses?
-- Every candidate call of one document, with what became of it; of the one with the best call of the run if
-- none is named.
create function what_was_tried_in_a_document(run text default '', document text default '')
    returns table (
        tool text, position_char integer, call_text text, result text, outcome text, reason text,
        release_outcome text, loss_without_call double precision, loss_without_result double precision,
        loss_with_result double precision, gain double precision, gain_bound double precision)
    language sql stable
as $$
    select tool, position_char, call_text, result, outcome, reason, release_outcome, loss_without_call,
        loss_without_result, loss_with_result,
           gain, gain_bound
    from candidates_of(run)
    where document_uuid = coalesce(cast(nullif(document, '') as uuid), (
          select cast(best.document_id as uuid)
          from run_tools t
          cross join lateral best_kept_calls(t.run_id, t.tool, 1) best
          where t.run_id = run_or_newest(run)
          order by best.gain desc, best.call_id
          limit 1
      ))
    order by position_char, tool, call_text
$$;
comment on function what_was_tried_in_a_document is
    'What was tried in a document, and with what losses? About this run and document; an empty name is the '
    'newest run that ended well, and the document with its best call.';
