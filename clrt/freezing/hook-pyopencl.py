"""PyInstaller's hook for pyopencl, in place of that of pyinstaller-hooks-contrib.

That one takes every .icd file, also those with a path of the machine that builds: the ICD loader
would load whatever lies there on the machine of the user.
"""

from PyInstaller.utils.hooks import collect_data_files, copy_metadata

datas = [*copy_metadata("pyopencl"), *collect_data_files("pyopencl", excludes=["**/*.icd"])]
