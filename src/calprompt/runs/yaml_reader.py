"""How YAML is read in recipes."""

from __future__ import annotations

import re

import yaml


class Reader(yaml.SafeLoader):
    """YAML as most people write it: 2e-3 is a number, which YAML 1.1 takes for text because it has no point."""


Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
