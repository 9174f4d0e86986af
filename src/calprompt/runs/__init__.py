"""A run and its folder: settings, plan, training, evaluation, and what is left on disk."""
