-- Nothing where it is known already; another process that tells the same waits for this transaction.
insert into notifications (run_id, ended_at, connection_id)
values (:run_id, :ended_at, :connection_id)
on conflict do nothing
