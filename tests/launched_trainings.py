"""Several trainings in the processes of one launch, in turn: to import torch there takes ten times as long as a training.

`accelerate launch --module tests.launched_trainings JOB...`, where `toolformer_ops/finetuning/processes.py`
launches `--module toolformer_ops.finetuning JOB`.
"""

import runpy
import sys

if __name__ == "__main__":
    for job in sys.argv[1:]:
        sys.argv = [sys.argv[0], job]
        try:
            runpy.run_module("toolformer_ops.finetuning", run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
