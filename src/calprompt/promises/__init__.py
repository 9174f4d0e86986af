"""What a model promises of its answers, from images it did not learn from: thresholds, prediction sets, none of these.

Everything here is arithmetic on numpy arrays of logits; it needs neither torch nor a model.
"""

from calprompt.promises.conformal import (
    choose_temperature,
    class_rate_interval,
    conformal_quantile,
    fit_sets,
    images_needed,
    rejection_threshold,
)
from calprompt.promises.division import Division, divide
from calprompt.promises.image_watch import ImageWatch
from calprompt.promises.promise import Evidence, doubtful_promise, make_promises
from calprompt.promises.requests import Promise, Requests, Unseen
from calprompt.promises.rule import (
    ANSWER,
    NONE_OF_THESE,
    UNSURE,
    Answer,
    DecisionRule,
    OpenSetRule,
    SetRule,
    make_answers,
)
from calprompt.promises.track_record import Meaning, TrackRecord
from calprompt.promises.watch import Watch
