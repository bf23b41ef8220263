"""Prints Nuitka's options that include clrt's files; `--intel` adds Intel's runtime."""

import argparse
import shlex
import sys

from clrt.errors import InputError
from clrt.freezing.contents import nuitka_options

parser = argparse.ArgumentParser(prog="python -m clrt.freezing", description=__doc__)
parser.add_argument("--intel", action="store_true", help="include Intel's CPU runtime")
try:
    print(shlex.join(nuitka_options(parser.parse_args().intel)))
except InputError as error:
    sys.exit(str(error))
