-- Keep what was measured; the first of several processes counts.
insert into rounding_margins (model_identity, device, number_format, calls, mean_difference, largest_difference, margin)
values (:model_identity, :device, :number_format, :calls, :mean_difference, :largest_difference, :margin)
on conflict do nothing
