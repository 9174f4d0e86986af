"""Images that belong together, such as copies of one picture, are divided as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


def join_groups(*keys: Sequence[Any] | None) -> list[int]:
    """One number per image; images that share any of their keys have the same one.

    >>> join_groups(["a", "b", "a", "c"], [1, 2, 3, 2])
    [0, 1, 0, 1]
    """
    given = [list(each) for each in keys if each is not None]
    parent = list(range(len(given[0])))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    for each in given:
        first: dict[Any, int] = {}
        for index, key in enumerate(each):
            parent[root(index)] = root(first.setdefault(key, index))
    return [root(index) for index in range(len(parent))]


def main_label(labels: Sequence[int]) -> int:
    """The label that most images of a group have; the smallest of several.

    >>> main_label([3, 1, 1, 3])
    1
    """
    if len(labels) == 1:
        return labels[0]
    counts = Counter(labels)
    return max(sorted(counts), key=counts.__getitem__)
