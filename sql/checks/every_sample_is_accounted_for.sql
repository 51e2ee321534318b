-- fail: samples = candidates + duplicates + rejected samples
select stage_of_document, items_in, items_out
from {batch}
where items_in <> items_out
