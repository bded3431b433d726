"""Shared by several workloads: job and outputs, Hub models and files, checks of untrusted folders."""
