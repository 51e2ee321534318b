-- Their ids are texts, as in the views: clients read uuids as bytes.
drop function if exists kept_calls_at(text, text, double precision);
drop function if exists best_kept_calls(text, text, integer)
