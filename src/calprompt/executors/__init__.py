"""Executors: groups of tasks, done by processes of this machine or of a Ray cluster."""
