"""Prompt tuners, one file per method, and learners on features, one file per family."""

from calprompt.tuners.adapters import CLIPAdapter, TipAdapter, TipAdapterF
from calprompt.tuners.base import Tuner, create_tuner, option_names, tuners
from calprompt.tuners.cocoop import CoCoOp
from calprompt.tuners.coop import CoOp
from calprompt.tuners.kgcoop import KgCoOp
from calprompt.tuners.maple import MaPLe
from calprompt.tuners.probes import CLAP, LinearProbe, TaskRes
from calprompt.tuners.proda import ProDA
from calprompt.tuners.prograd import ProGrad
from calprompt.tuners.promptsrc import PromptSRC
from calprompt.tuners.zero_shot import ZeroShot

create = create_tuner  # calprompt.tuners.create("coop", …)
available = tuners.available
get = tuners.get
register = tuners.register
