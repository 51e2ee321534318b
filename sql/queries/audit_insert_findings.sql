-- Findings of an audit; one of the same place is there once. unless: a place that, where it was found, explains the finding.
insert into audit_findings (audit_id, check_name, kind, relation, place, what, remedy, repair)
select :audit_id, :check_name, kind, relation, place, what, remedy, repair - 'unless'
from jsonb_to_recordset(cast(:found as jsonb)) as found (kind text, relation text, place text, what text, remedy text, repair jsonb)
where not exists (
    select from audit_findings known
    where known.audit_id = :audit_id and known.place = found.repair ->> 'unless' and found.place <> found.repair ->> 'unless'
)
on conflict (audit_id, relation, place) do nothing
