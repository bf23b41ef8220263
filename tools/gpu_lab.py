"""Finds out all about a device: properties, tests, tunables, models and products; no network.

python tools/gpu_lab.py                            # the first GPU, a quarter of an hour
python tools/gpu_lab.py --device pocl --budget 120 # a CPU, to see that it works
python tools/gpu_lab.py --stages models products   # some of it

Called again it goes on with what there was no time for. docs/guides/devices.md has more.
"""

from gpulab.cli import main

if __name__ == "__main__":
    main()
