"""Where data is kept: Postgres (schema, queries, COPY) and S3 (objects, publications)."""
