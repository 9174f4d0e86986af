"""Post-hoc calibrators, one file each."""

from calprompt.calibrators.base import Calibrator, calibrators
from calprompt.calibrators.temperature import Temperature

available = calibrators.available
get = calibrators.get
register = calibrators.register

__all__ = ["Calibrator", "Temperature", "available", "calibrators", "get", "register"]
