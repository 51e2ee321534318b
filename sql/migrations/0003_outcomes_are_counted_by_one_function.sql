-- counted_outcomes has taken its place.
drop function if exists counted_kept(run_tools, annotation_runs, annotation_runs)
