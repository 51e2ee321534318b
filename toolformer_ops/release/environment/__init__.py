"""Files that `export --format environment` writes beside its tasks: what TRL and verifiers need to train on them.

They are copied as they are, and need nothing of this package: `call_tasks.py` has the reward, `for_trl.py`
and `for_verifiers.py` make environments of the two libraries.
"""
