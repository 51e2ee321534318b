"""The demo: a small real model and a small real corpus, taken through Airflow from text to a finetuned model.

`make demo` runs `driver.run_demo`; `make run` runs `driver.run_corpus`, the same for a user's own text.
"""
