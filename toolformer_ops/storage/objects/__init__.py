"""Files on S3: objects, publications of several files, and artifacts with a cache on this machine."""
