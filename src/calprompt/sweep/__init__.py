"""Sweeps: grids of runs, worked on by several processes into one folder."""
