"""`python -m calprompt` is the command `calprompt`."""

import sys

from calprompt.cli import main

sys.exit(main())
