-- A position is a token of the whole document, whatever part of it was sampled.

comment on column candidate_calls.position_token is 'The token before which the call is inserted, from 0, in the tokens of the document.';
comment on column pruned_positions.position_token is 'The token before which a call would stand, from 0, in the tokens of the document.';
