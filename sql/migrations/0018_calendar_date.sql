-- The Calendar of an evaluation tells a fixed day where an input has no date of its own, and that day is part of a score's key: what
-- was evaluated with another day is another score. Before this migration the Calendar told the day of the evaluation.

alter table evaluation_scores add column calendar_date date;
update evaluation_scores set calendar_date = (evaluated_at at time zone 'UTC')::date;
alter table evaluation_scores
    alter column calendar_date set not null,
    drop constraint evaluation_scores_pkey,
    add primary key (run_id, suite, subset, model, variant, call_start_rank, metric, inputs, data_sha256, calendar_date);
comment on column evaluation_scores.calendar_date is 'The day that the Calendar told for inputs without a date of their own. Scores from before migration 0018: the day on which they were evaluated.';
comment on column evaluation_scores.inputs is 'Inputs that were asked; of perplexity texts. Fewer than the data set has: a sample over its parts (before migration 0018 the first ones).';
