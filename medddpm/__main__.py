"""`python -m medddpm`, as torchrun needs it."""

import sys

from medddpm.cli.main import main

sys.exit(main())
