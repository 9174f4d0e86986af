"""Results of runs: one table of rows, what makes two runs the same method, where results are found, and comparisons."""
