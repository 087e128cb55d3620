"""`python -m standalone.api`."""

import sys

from standalone.api.main import main

sys.exit(main())
