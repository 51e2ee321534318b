"""Toolformer as a system: text in, scored tool calls in SQL, a released data set and a finetuned model on S3.

The method is that of Schick et al., "Toolformer: Language Models Can Teach Themselves to Use Tools" (2023).
Rooms: `language_model` (the engine), `tools` (one module and one prompt file a tool), `retrieval` (BM25 over
Wikipedia),
`stages` (what an Airflow task runs), `orchestration` (how Airflow runs it), `local_services` (one machine, no
Docker).
"""

__version__ = "0.1.0"
