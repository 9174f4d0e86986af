"""Prompt tuners and learners on features, one file per method or family of methods."""

from calprompt.tuners.adapters import CLIPAdapter, TipAdapter, TipAdapterF
from calprompt.tuners.base import Tuner, ZeroShot, create_tuner, option_names, tuners
from calprompt.tuners.cocoop import CoCoOp
from calprompt.tuners.coop import CoOp, KgCoOp, ProGrad
from calprompt.tuners.maple import MaPLe
from calprompt.tuners.probes import CLAP, LinearProbe, TaskRes
from calprompt.tuners.proda import ProDA
from calprompt.tuners.promptsrc import PromptSRC

create = create_tuner  # calprompt.tuners.create("coop", …)
available = tuners.available
get = tuners.get
register = tuners.register
