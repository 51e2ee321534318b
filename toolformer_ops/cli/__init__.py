"""Subcommands.

    command_line.py  all of them in one application
    options.py       options that several of them have
    stages.py        what Airflow's tasks start
    on_a_file.py     call a tool, look at a file, annotate it, judge and explain calls
    people.py        the parameters of runs, which runs there are, what changed; export a release
    tools.py         a tool file from a database, a function, an MCP server or an OpenAPI document
    decoding.py      let a model write with tools
    evaluation.py    evaluate a model; the questions of DATESET; the page of a run's evaluations
    publishing.py    a model on S3, a release or model on a hub or in a folder
    placebos.py      placebos of a run, and thresholds that hold a false-discovery rate
    housekeeping.py  delete texts, drop unused rows, audit; whether a stage could run here, or on a cluster
    history.py       finished runs as Parquet
    services.py      the services of one machine
    demo.py          whole runs through Airflow

They parse and print; the work is elsewhere.
"""
