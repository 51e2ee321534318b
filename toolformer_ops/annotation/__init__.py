"""The method, without a database: where calls are sampled, what becomes a candidate call, its answer, losses and the keep rule."""
