-- For the one session of a check: its hash tables stay in memory up to some 100,000 documents, and no statement is compiled for a second.
set work_mem = '64MB';
set jit = off
