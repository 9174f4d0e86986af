"""What only the TCPT paper needs: its tables and published numbers, its figures, and its sweeps.

tables.py and figures.py have them by name; layouts.py, values.py (rows of results to numbers), logit_figures.py and
setting_figures.py make them; published.py is what the paper says; sweeps/ has the grids of runs.

No other room imports this one: `calprompt.papers` finds it by its name, and the room of another paper in the same way.
"""
