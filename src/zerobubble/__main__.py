"""What does ``python -m zerobubble`` run? The command line."""

import sys

from zerobubble.cli import main

sys.exit(main())
