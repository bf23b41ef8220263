"""Plans models for GPUs of all vendors and compiles the kernels for them; no GPU is needed.

python tools/gpu_report.py                    # docs/gpus.md; docs/gpus.md says what it needs
python tools/gpu_report.py --models mobilenet --output /tmp/gpus.md
python tools/gpu_report.py --no-compile       # plans alone
"""

from gpus.cli import main

if __name__ == "__main__":
    main()
