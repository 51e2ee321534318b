-- A row where the partition is there and attached.
select 1
from pg_inherits
where inhrelid = to_regclass(quote_ident(cast(:partition as text)))
