"""`python -m engine`: the command line without an installed `stoker`."""

import sys

from engine.cli import main

sys.exit(main())
