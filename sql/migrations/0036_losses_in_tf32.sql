-- On a GPU that has it, TF32 decides calls that bfloat16 or float16 cannot; it has a margin of its own.

-- Not valid: every row satisfies the narrower constraint that it replaces, so that none is read.
alter table call_losses drop constraint call_losses_number_format_check;
alter table call_losses add constraint call_losses_number_format_check
    check (number_format in ('float32', 'tf32', 'bfloat16', 'float16')) not valid;
alter table rounding_margins drop constraint rounding_margins_number_format_check;
alter table rounding_margins add constraint rounding_margins_number_format_check
    check (number_format in ('tf32', 'bfloat16', 'float16'));
comment on column call_losses.number_format is 'float32, tf32, bfloat16 or float16: the numbers in which the losses were computed. Null if there are none.';
comment on column rounding_margins.number_format is 'tf32, bfloat16 or float16.';
