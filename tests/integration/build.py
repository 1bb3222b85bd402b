"""The folder of the build under test: the first argument of every test program here."""
import os
import sys

import __main__

if len(sys.argv) < 2:
    sys.exit(__main__.__doc__)
BUILD = os.path.abspath(sys.argv.pop(1))
ADTOPKD = os.path.join(BUILD, "daemon", "adtopkd")
ADTOPKCTL = os.path.join(BUILD, "client", "adtopkctl", "adtopkctl")
