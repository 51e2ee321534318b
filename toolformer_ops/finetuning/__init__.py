"""Finetuning on a release (Toolformer, section 2 "Model Finetuning", and appendix B).

    recipe.py            what decides a finetuned model, and the model's id
    sequences.py         texts to token sequences, and passes over them in a seeded order
    batches.py           one forward pass: rows packed without attention between their texts, and the loss
    training.py          a training, from the last checkpoint on
    trainer.py           transformers' Trainer with this loss, development perplexities and checkpoints
    checkpoints.py       checkpoints that are whole or none, the weights of the best step, and snapshots of both on S3
    training_log.py      progress lines, losses and perplexities by step
    curves.py            the same as a picture and for TensorBoard
    release_training.py  a release in a local folder to the folder that is published, with its card
    processes.py         several GPUs: one process each, with the job that they are told; `zero3.json` is how they share

`stages/finetuning.py` reads the release from S3, writes the ledger and publishes.
"""
