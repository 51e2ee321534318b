"""The connection to Postgres, its schema, partitions and sessions, and the queries of sql/queries."""
