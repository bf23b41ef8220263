"""PyInstaller's hook for pyopencl, in place of the one in pyinstaller-hooks-contrib.

That hook includes every .icd file, also those with paths of the build machine: the ICD loader would
load whatever file is at such a path on the user's machine.
"""

from PyInstaller.utils.hooks import collect_data_files, copy_metadata

datas = [*copy_metadata("pyopencl"), *collect_data_files("pyopencl", excludes=["**/*.icd"])]
