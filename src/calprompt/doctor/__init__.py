"""What this machine and this installation are, what does not work, and what to do about it.

    for finding in examine():
        print(finding.status, finding.name, finding.value, finding.advice)

No check needs a network, and none can take the caller down: checks run in a process of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.doctor.examination import Check, examine
    from calprompt.doctor.finding import Finding

__all__ = ["Check", "Finding", "examine"]

__getattr__, __dir__ = lazy_exports(__name__, {"examination": ("Check", "examine"), "finding": ("Finding",)})
