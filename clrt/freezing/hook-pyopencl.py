"""PyInstaller's hook for pyopencl, in place of the one in pyinstaller-hooks-contrib.

The other hook includes every .icd file, even if the file contains a path of the build machine. The
ICD loader would then load whatever file is at this path on the user's machine.
"""

from PyInstaller.utils.hooks import collect_data_files, copy_metadata

datas = [*copy_metadata("pyopencl"), *collect_data_files("pyopencl", excludes=["**/*.icd"])]
