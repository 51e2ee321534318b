"""The paper's evaluations: suites of inputs, metrics, intervals, comparisons.

See sections 4.2 to 4.4 and 5, and appendices C and D. `suites/` has a module for each suite; `running.py`
asks a model in a variant the questions of a data set, `session.py` asks several models those of several
suites; `report/` makes the page of a run. Nothing here loads torch on import.
"""
