"""What can be chosen about a table."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.errors import SettingError

HARMONIC = "harmonic"
SPLITS = ("base", "novel", "all", HARMONIC)


@dataclass(frozen=True)
class TableOptions:
    """What is different from the paper's table.

    Attributes:
        splits: base, novel, all or harmonic (the harmonic mean of base and novel accuracy, the mean of errors); those
            of the paper, if empty.
        metrics: In the place of the paper's, if any.
        methods: Only these, such as vanilla and tcpt, or a loss, or "tcpt, temperature"; the paper's, and other losses
            that the results have, if empty.
        spread: With the standard deviation over seeds.
        difference: With the average's paired difference to the plain tuner, and its interval over datasets.
        published: With the paper's numbers.
    """

    splits: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    spread: bool = False
    difference: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        wrong = [split for split in self.splits if split not in SPLITS]
        if wrong:
            raise SettingError(f"must be one of {', '.join(SPLITS)}; got {wrong[0]!r}", parameter="split")
