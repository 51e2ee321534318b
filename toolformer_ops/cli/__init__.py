"""Subcommands.

    command_line.py  all of them in one application
    stages.py      what Airflow's tasks start
    people.py      call a tool, try a filter, explain a call, annotate a file, estimate a run, export a
    release tools.py       a tool file from an MCP server or an OpenAPI document
    decoding.py    let a model write with tools
    evaluation.py  evaluate a model; the questions of DATESET; the page of a run's evaluations
    publishing.py  a model on S3, a release or model on a hub or in a folder
    near_duplicates.py  texts that nearly repeat another one
    placebos.py    placebos of a run, and thresholds that hold a false-discovery rate
    housekeeping.py  delete texts, drop unused rows, audit; whether a stage could run here, or on a cluster
    services.py    the services of one machine
    demo.py        whole runs through Airflow

They parse and print; the work is elsewhere.
"""
