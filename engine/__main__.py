"""`python -m engine`: the command line without an installed `stoker`."""

import sys

try:
    from engine.cli import main

    code = main()
except KeyboardInterrupt:  # `main` answers to it itself; this is one while everything is still being imported
    code = 130
sys.exit(code)
