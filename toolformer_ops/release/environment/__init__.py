"""Files that `export --format environment` writes beside its tasks.

TRL and verifiers need them to train on the tasks. They are copied as they are, and need nothing of this
package: `call_tasks.py` has the reward, `for_trl.py` and `for_verifiers.py` make environments of the two
libraries.
"""
