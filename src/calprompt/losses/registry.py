"""The registry of train-time losses: frozen dataclasses of settings that are called with `Outputs` and return a scalar.

A loss may have a method `parts()` that returns parts of it as losses by name, for diagnostics, and a class attribute
`uses_zero_shot` if it needs zero-shot logits. A setting that is added to a loss of an earlier release is a field with
the metadata `added`, so that earlier runs keep their identity.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from calprompt.outputs import Outputs
from calprompt.registry import Registry

Loss = Callable[[Outputs], Tensor]

losses: Registry[Callable[..., Loss]] = Registry("loss")
