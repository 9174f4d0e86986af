"""What only the TCPT paper needs: its tables and published numbers, its figures, and its sweeps.

tables.py       the tables by name, and `make_tables`      by_dataset.py, layouts.py    how they are laid out
published.py    every number that the paper printed        values.py                    rows of results to numbers
margins.py, settings.py, text_features.py, training.py     figures
sweeps/         the grids of runs, as `calprompt sweep paper/main` reads them

No other room imports this one: `calprompt.papers` finds it by its name, and the room of another paper in the same way.
"""
