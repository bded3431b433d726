"""Stored files: artifacts, uploads, links, what may be kept, what is damaged, what is deleted."""
