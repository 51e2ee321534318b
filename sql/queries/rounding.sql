-- The margin within which rounding decides.

-- name: rounding_margin
-- What is allowed for rounding in a model's number format; no row if it was not measured.
select margin
from rounding_margins
where model_identity = :model_identity and device = :device and number_format = :number_format
    and keep_rule = :keep_rule

-- name: insert_rounding_margin
-- Keep what was measured; the first of several processes counts.
insert into rounding_margins
    (model_identity, device, number_format, keep_rule, calls, mean_difference, largest_difference, margin)
values (:model_identity, :device, :number_format, :keep_rule, :calls, :mean_difference, :largest_difference,
    :margin)
on conflict do nothing
