"""What a worker needs of a machine: processors, graphics processors, memory. Read from a line such as

resources: {cpus: 1, gpus: 0, memory: 2GB}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from calprompt.errors import SettingError
from calprompt.registry import unknown
from calprompt.text import format_size, size_in_bytes


@dataclass(frozen=True)
class WorkerResources:
    """What is set aside for one worker.

    Attributes:
        cpus: Processors; a fraction lets several workers share one.
        gpus: Graphics processors; a fraction below 1 lets several workers share one.
        memory: Bytes; 0 leaves it out of account.
    """

    cpus: float = 1
    gpus: float = 0
    memory: int = 0

    def __str__(self) -> str:
        words = [f"{self.cpus:g} CPU"]
        words += [f"{self.gpus:g} GPU"] if self.gpus else []
        words += [f"{format_size(self.memory)} of memory"] if self.memory else []
        return ", ".join(words)

    def count_in(self, machine: Mapping[str, float]) -> int:
        """How many workers a machine has room for.

        Args:
            machine: What it has, by Ray's names: CPU, GPU and memory.

        >>> WorkerResources(cpus=2, memory=4_000_000_000).count_in({"CPU": 8, "memory": 10e9})
        2
        """
        needs = (("CPU", self.cpus), ("GPU", self.gpus), ("memory", self.memory))
        return min(int(machine.get(name, 0) / need + 1e-6) for name, need in needs if need)


def parse_resources(content: Mapping[str, Any], where: str, usual: WorkerResources) -> WorkerResources:
    """Resources from what a file says of them.

    Args:
        content: Names with values: cpus, gpus, memory.
        where: What errors call the place.
        usual: Values of what is not said.

    Raises:
        SettingError: for names and values that make no sense.
    """
    known = [field.name for field in fields(WorkerResources)]
    for name in content:
        if name not in known:
            raise unknown(f"name in {where}:", str(name), known)
    cpus = _number(content.get("cpus", usual.cpus), f"{where}: cpus")
    gpus = _number(content.get("gpus", usual.gpus), f"{where}: gpus")
    if cpus <= 0:
        raise SettingError(f"{where}: cpus must be above 0, got {cpus:g}")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise SettingError(f"{where}: gpus must be a whole number, or a fraction below 1; got {gpus:g}")
    memory = content.get("memory", usual.memory)
    size = memory if isinstance(memory, int) and not isinstance(memory, bool) else size_in_bytes(str(memory))
    if size is None or size < 0:
        raise SettingError(f"{where}: memory must be a size such as 2GB or 500MB, got {memory!r}")
    return WorkerResources(cpus, gpus, size)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise SettingError(f"{where} must be a number, got {value!r}")
    return value
