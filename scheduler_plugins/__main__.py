"""`python -m scheduler_plugins`."""

import sys

from scheduler_plugins.main import main

sys.exit(main())
