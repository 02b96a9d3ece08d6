"""python -m couplet.bench"""

import sys

from . import main

sys.exit(main())
