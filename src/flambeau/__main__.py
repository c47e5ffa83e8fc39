"""`python -m flambeau`."""

import sys

from flambeau.cli.main import main

sys.exit(main())
