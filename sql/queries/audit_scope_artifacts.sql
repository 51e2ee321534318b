select uri, kind, identity, manifest_sha256, bytes from published_artifacts order by uri
