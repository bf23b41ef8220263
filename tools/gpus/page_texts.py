"""Texts around the tables of the report's page."""

from __future__ import annotations

INTRO = """\
# GPUs, planned and compiled

This page lists clrt's launches on GPUs, and the output of GPU compilers for its kernels, determined
without a GPU. `make gpu-report` generates it. Models are planned for devices as their vendors
describe them, and each distinct kernel of the plans is compiled for the nearest target that an
available compiler supports. No time on this page was measured.

The report fails if

- a kernel does not compile, spills registers or has a stack;
- a device would refuse a launch;
- the share of multiplying instructions in a main loop is below its minimum;
- a launch leaves cores idle for longer than the cost of a launch, and no reason is recorded;
- a work-item iterates a loop more than 4,096 times;
- a figure is worse than in `gpus.json` beside this page; `ARGS="--accept"` accepts it.

## Running it

The compilers are searched on the PATH, and in the folder `CLRT_GPU_TOOLS`, into which you can
unpack packages with `dpkg -x` and `pip install --target`.

| For | Packages |
|---|---|
| AMD | Debian's `clang-19` and `libclc-19` |
| NVIDIA | these, and from PyPI `nvidia-cuda-nvcc` and `nvidia-cuda-nvdisasm` |
| Intel | Debian's `intel-opencl-icd` and `libigc-tools`, which have `ocloc` and its compiler |
| OpenCL C 1.2 | `clang-19` |

`make gpu-report ARGS="--no-compile"` only plans, which needs none of them.
"""

DEVICES = """\
## Devices

*units* are compute units as the device's OpenCL runtime counts them. *cores* is the number of
processors that run work-groups independently: one per eight units on Intel's GPUs, one per unit
elsewhere. *local* is local memory per work-group, *buffer* the maximum buffer size. Only the
figures of the H200 were read from a device. *launch*, the cost of a launch, is published by no
vendor, and is assumed for the others. If the available compilers do not support a device, its
target is the nearest one: `gfx90a` for RX 580 and MI300X, `gfx1100` for 780M, `sm_80` for GTX 1060,
`pvc` for B580.
"""

SOURCES = """\
Sources of the figures, and what they were compared with: tables of vendors, source code of their
runtimes, and reports of users about the output of OpenCL on such devices.
"""

MODELS = """\
## Models

*perfect* is the time of a device that runs each launch at the rates of its data sheet, by
operations or by bytes, and starts launches in no time. *likely* adds: the fixed cost of a launch;
cores and SIMD lanes left idle by too few work-groups; memory latency, if too few work-items have
bytes in flight; and the instructions of a kernel's main loop that do not multiply. If no compiler
output is available, half of the instructions are assumed not to multiply. On RDNA 3 and 4, whose
data sheets count two operations per instruction, empty slots are also added. *likely* serves to
compare devices and launches; as a time it is right to a factor of two, and for `strict` not even
that. *launching* is the part of it that is the fixed cost of launches. *groups per core* is that of
the median launch, and *idle* counts launches with fewer work-groups than cores.
"""

AIMS = """\
## Aims

Predicted time of the launches without their fixed costs, in bold if it exceeds the aim.
"""

IDLE = """\
## Cores without a work-group

Launches with fewer work-groups than cores, in the models with aims, with the time that all of them
lose in a run, and the reason.
"""

KERNELS = """\
## Kernels

A row has all programs of a kernel, which differ by their macros. A cell has *registers* ·
*occupancy* · *multiplying share of the main loop*, each from minimum to maximum; it is bold if a
program spills or has a stack. Registers are counted per work-item, on Intel's GPUs per thread.
Occupancy is in waves per scheduler (AMD) and warps per multiprocessor (NVIDIA); on Intel's GPUs it
is the number of work-items per thread. The share is that of the instructions, and for `gfx1100` and
`gfx1201` also that of the slots, of which a vector instruction has two. *local* is bytes of local
memory. `strict` is OpenCL C 1.2 without extensions; ✓ means that it was parsed without errors.
"""
