"""`python -m medddpm`, as torchrun needs it."""

import sys

from medddpm.cli import main

sys.exit(main())
