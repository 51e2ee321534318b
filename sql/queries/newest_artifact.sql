-- The address of the model or index that was published last; no row where none was.
select uri
from published_artifacts
where kind = :kind
order by published_at desc, uri
limit 1
