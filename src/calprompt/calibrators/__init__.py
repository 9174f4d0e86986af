"""Post-hoc calibrators: fitted on stored validation results, applied to stored results.

val, test = StoredLogits(val_logits, val_labels), StoredLogits(test_logits)
calibrators.parse("temperature").fit(val)(test)        calibrated logits of the test images
calibrators.parse("temperature -> dac")                a chain: one after another
"""

from calprompt.calibrators.base import Calibrator, Chain, StoredLogits, calibrators, parse
from calprompt.calibrators.dac import DistanceAware, SampleLogitScaling
from calprompt.calibrators.isotonic import Histogram, Isotonic
from calprompt.calibrators.scaling import Temperature, TemperatureSGD, Vector

available = calibrators.available
get = calibrators.get
register = calibrators.register
