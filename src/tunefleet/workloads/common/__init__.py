"""Shared by several workloads: job and outputs, hub models and files, checks of untrusted folders."""
