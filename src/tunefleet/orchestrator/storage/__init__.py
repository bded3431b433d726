"""Storage: artifacts, uploads, result files, signed URLs, limits, verification and deletion."""
