"""Finetuning on a release (Toolformer, section 2 "Model Finetuning", and appendix B).

`release_training.py` makes of a release the folder that is published; `stages/finetuning.py` reads the
release from S3, writes the ledger and publishes.
"""
