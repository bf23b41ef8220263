"""Times clrt beside its peers: each runtime in a process of its own, taking short turns.

    python tools/bench.py                                   # everything, some ten minutes
    python tools/bench.py --quick --sections models gemm    # fewer sizes and turns
    python tools/bench.py --json bench.json --plot bench.png

Use the machine for nothing else meanwhile. A ratio in one run holds better than a time.
"""

from benchmark.cli import main

if __name__ == "__main__":
    main()
