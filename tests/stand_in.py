"""A device named "standin" beside the CPU, which computes: tensors on it hold their numbers in host memory.

What a GPU would refuse, it refuses: an operation on tensors of both devices, a NumPy array of its memory. What would
make the host wait for a GPU is counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")  # a GPU takes indices in host memory
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
waits = 0  # times that the host would have waited for the device


class StandIn(torch.Tensor):
    """A tensor on the device."""

    host: torch.Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, host: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.size(), strides=host.stride(), dtype=host.dtype, device=f"{NAME}:0"
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, *args, **(kwargs or {}))

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"cannot convert a tensor of {NAME} to NumPy; copy it to the host first")


def compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Do an operation in host memory."""
    global waits
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    mixing = func in COPIES or func.overloadpacket.__name__ in INDEXING
    if not mixing and any(not isinstance(each, StandIn) and each.ndim for each in tensors):
        raise RuntimeError(f"{func} mixes tensors of cpu and {NAME}")
    to_host = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
    into_host = func is torch.ops.aten.copy_.default and not isinstance(args[0], StandIn)
    waits += func in READS or to_host or into_host
    result = func(*tree_map(_in_host_memory, args), **tree_map(_in_host_memory, kwargs))
    if to_host or into_host:
        return result
    known = {id(each.host): each for each in tensors if isinstance(each, StandIn)}  # of operations in place
    placed = lambda each: known[id(each)] if id(each) in known else StandIn(each)  # noqa: E731
    return tree_map(lambda each: placed(each) if isinstance(each, torch.Tensor) else each, result)


def _in_host_memory(value: Any) -> Any:
    if isinstance(value, StandIn):
        return value.host
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _made_on_the_host(make: Any) -> Any:
    """A function that makes tensors, by way of the host: what it does in C++ cannot be taken over from Python."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or (args and isinstance(args[0], StandIn)):
            return make(*args, **kwargs) if device is None else make(*args, device=device, **kwargs)
        tensor: torch.Tensor = make(*args, **kwargs)
        return tensor.to(device)

    return made


library = torch.library.Library("_", "IMPL")


def register() -> None:
    """Make the device known to torch, for the rest of the process."""
    _setup_privateuseone_for_python_backend(NAME)
    library.fallback(compute, "PrivateUse1")
    for name in ("tensor", "as_tensor", "eye"):
        setattr(torch, name, _made_on_the_host(getattr(torch, name)))
