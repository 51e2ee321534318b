-- What a reviewer has judged of a release.
select call_id, is_placebo, seed, verdict from counted_judgements where release_id = :release_id and reviewer = :reviewer
