"""Routes of the documents that others' clients speak: the worker guide, results, the first task API."""
