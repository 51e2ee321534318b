"""Whether what is stored is what was made: computed again from the data themselves, place by place.

    auditing.py        one audit: its scope, its checks in pages, progress in Postgres, findings
    rows.py            checks of Postgres: ids, rows against the ledger, sums, runs, numbers
    history.py         checks of the history: manifest, bytes, whose rows are in the files
    objects.py         checks of S3: releases, models, artifacts, what nothing names; folders left on this machine
    released_calls.py  the calls in a release's files beside the rows that they were taken from
    evaluations.py     scores beside the evaluated inputs on S3; whose models a run's models are
    claims.py          the claims of sql/audits, which checking.py asks of new rows and an audit of all
    checking.py        quality gates: a tool's new rows, and a release, before they count as done
    resampling.py      calls computed again from their texts by the engine
    repairing.py       what can be derived again, after a dry run

Owns the tables `audits`, `audit_checks` and `audit_findings`.
"""
