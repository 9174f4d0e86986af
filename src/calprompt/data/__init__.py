"""Labelled images: where they come from, and which of them a run sees. Reading and splitting them needs no torch."""
