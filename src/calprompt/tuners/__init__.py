"""Prompt tuners, one file a method."""

from calprompt.tuners.base import Tuner, create, tuners
from calprompt.tuners.coop import CoOp
from calprompt.tuners.zero_shot import ZeroShot

available = tuners.available
get = tuners.get
register = tuners.register

__all__ = ["CoOp", "Tuner", "ZeroShot", "available", "create", "get", "register", "tuners"]
