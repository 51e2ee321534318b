-- Register a release; one that is registered already stays as it is, but for its manifest where its files were made anew, and is no
-- longer withdrawn. :rates is null where its card is one that somebody else wrote.
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools, definition, rates)
values (:release_id, :run_id, :uri, :manifest_sha256, :documents, :calls, cast(:lacking_tools as text[]), cast(:definition as jsonb),
        cast(:rates as jsonb))
on conflict (release_id) do update
set manifest_sha256 = excluded.manifest_sha256,
    definition = excluded.definition,
    rates = coalesce(excluded.rates, dataset_releases.rates),
    withdrawn_at = null
