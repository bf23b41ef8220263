"""Prints the options by which Nuitka includes what clrt needs."""

import shlex

from clrt.freezing.contents import nuitka_options

print(shlex.join(nuitka_options()))
