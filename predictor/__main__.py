"""`python -m predictor`."""

import sys

from predictor.main import main

sys.exit(main())
