"""The register of train-time losses: a frozen dataclass of settings, called with `Outputs`, gives a scalar."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from calprompt.outputs import Outputs
from calprompt.registry import Registry

Loss = Callable[[Outputs], Tensor]

losses: Registry[Callable[..., Loss]] = Registry("loss")
