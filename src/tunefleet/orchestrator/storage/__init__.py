"""Storage: artifacts, uploads, signed URLs, limits, verification and deletion."""
