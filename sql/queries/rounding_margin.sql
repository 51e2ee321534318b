-- What is allowed for rounding in a model's number format; no row where it was not measured.
select margin
from rounding_margins
where model_identity = :model_identity and device = :device and number_format = :number_format
