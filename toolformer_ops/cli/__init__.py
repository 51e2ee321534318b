"""Subcommands.

    command_line.py  all of them in one application
    stages.py      what Airflow's tasks start
    people.py      call a tool, try a filter, explain a call, annotate a file, estimate a run, export a release
    tools.py       a tool file from an MCP server or an OpenAPI document
    decoding.py    let a model write with tools
    evaluation.py  evaluate a model; the questions of DATESET
    publishing.py  a model on S3, a release or model on a hub or in a folder
    doctor.py      whether a stage could run here, or on a cluster
    reporting.py   the page of a run's evaluations

They parse and print; the work is elsewhere.
"""
