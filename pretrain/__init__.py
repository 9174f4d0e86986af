"""How the pocket model and its datasets were made; nothing of the package imports this, and users do not need it."""
