"""The one exception a user's mistake raises: it says what was wrong, what was expected and what to do."""


class CalpromptError(ValueError):
    """A mistake in what the user gave (a file, a name, a value, an option), told without a traceback by the CLI."""
