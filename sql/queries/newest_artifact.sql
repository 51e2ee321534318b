-- The address of the model or index that was published last, or of those of one source; no row where none was.
select uri
from published_artifacts
where kind = :kind and (cast(:source as text) is null or source = :source)
order by published_at desc, uri
limit 1
