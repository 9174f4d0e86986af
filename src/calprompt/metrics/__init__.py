"""Metrics of probabilities and labels: pure functions in float64 that return fractions, not percent.

evaluate(probs, labels)            all of them at once          metrics.available()     their names
expected_calibration_error(...)    one of them                  reliability_table(...)  the bins themselves
evaluate(..., convention="tcpt")   with the bins of a public evaluator, to recompute published numbers
debiased_errors(predictions)       ECE and ACE without what chance adds, with intervals and a test of calibration
guaranteed_threshold(...)          which confidences to accept, with a guarantee on their error
"""

from calprompt.metrics.binning import (
    DAC,
    DEFAULT,
    TCPT,
    BinTable,
    Convention,
    EqualWidth,
    conventions,
    equal_mass_table,
    equal_width_table,
)
from calprompt.metrics.calibration import (
    adaptive_calibration_error,
    calibration_errors_from_confidence,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    proximity_calibration_error,
    reliability_table,
    weighted_maximum_calibration_error,
)
from calprompt.metrics.debiased import DebiasedError, debiased_error, debiased_errors
from calprompt.metrics.evaluation import (
    Metric,
    MetricInfo,
    accuracy,
    brier_score,
    confidence_gap,
    evaluate,
    macro_f1,
    mean_confidence,
    metric_info,
    metrics,
    negative_log_likelihood,
)
from calprompt.metrics.inputs import Predictions, predictions
from calprompt.metrics.selective import (
    GuaranteedThreshold,
    RiskCoverage,
    area_under_risk_coverage,
    aurc,
    excess_area_under_risk_coverage,
    guaranteed_threshold,
    risk_coverage,
)
from calprompt.metrics.smooth import smooth_calibration_error, smooth_ece
