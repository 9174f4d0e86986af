"""Post-hoc calibrators, one file each: fitted on stored validation results, applied to stored results.

val, test = StoredLogits(val_logits, val_labels), StoredLogits(test_logits)
calibrators.parse("temperature").fit(val)(test)        calibrated logits of the test images
calibrators.parse("temperature -> dac")                a chain: one after another
"""

from calprompt.calibrators.base import Calibrator, calibrators
from calprompt.calibrators.chain import Chain, parse
from calprompt.calibrators.dac import DistanceAware
from calprompt.calibrators.histogram import Histogram
from calprompt.calibrators.isotonic import Isotonic
from calprompt.calibrators.sals import SampleLogitScaling
from calprompt.calibrators.stored_logits import StoredLogits
from calprompt.calibrators.temperature import Temperature
from calprompt.calibrators.temperature_sgd import TemperatureSGD
from calprompt.calibrators.vector import Vector

available = calibrators.available
get = calibrators.get
register = calibrators.register

__all__ = [
    "Calibrator",
    "Chain",
    "DistanceAware",
    "Histogram",
    "Isotonic",
    "SampleLogitScaling",
    "StoredLogits",
    "Temperature",
    "TemperatureSGD",
    "Vector",
    "available",
    "calibrators",
    "get",
    "parse",
    "register",
]
