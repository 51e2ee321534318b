-- Register a release; one that is registered already stays as it is.
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools)
values (:release_id, :run_id, :uri, :manifest_sha256, :documents, :calls, cast(:lacking_tools as text[]))
on conflict (release_id) do nothing
