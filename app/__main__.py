"""`python -m app` opens the window."""

import sys

from app.main import main

sys.exit(main())
