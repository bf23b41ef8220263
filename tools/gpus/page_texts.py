"""Texts around the tables of the report's page."""

from __future__ import annotations

INTRO = """\
# GPUs, planned and compiled

What clrt launches on GPUs, and what compilers for them make of its kernels, found without a GPU:
`make gpu-report` makes this page. Models are planned for devices as their vendors publish them, and
each distinct kernel of the plans is compiled for the nearest target that a compiler here knows. No
time on this page was measured.

The report fails where

- a kernel does not compile, spills registers or has a stack;
- a device would refuse a launch;
- a main loop is below its floor;
- a launch leaves cores idle for longer than a launch takes, and nothing says why;
- a work-item goes through a loop more than 4,096 times;
- a figure is worse than in `gpus.json` beside this page; `ARGS="--accept"` takes it as it is.

## Running it

The compilers are found on the path, or below the folder that `CLRT_GPU_TOOLS` names, into which
packages may be unpacked by `dpkg -x` and `pip install --target`.

| For | Packages |
|---|---|
| AMD | Debian's `clang-19` and `libclc-19` |
| NVIDIA | these, and from PyPI `nvidia-cuda-nvcc` and `nvidia-cuda-nvdisasm` |
| Intel | Debian's `intel-opencl-icd` and `libigc-tools`, which have `ocloc` and its compiler |
| OpenCL C 1.2 | `clang-19` |

`make gpu-report ARGS="--no-compile"` plans alone, which needs none of them.
"""

DEVICES = """\
## Devices

*units* are compute units as the device's OpenCL runtime counts them, and *cores* what work-groups
run on: eight units on Intel's, one elsewhere. *local* is local memory of a work-group, *buffer* the
largest one. None of it was read from a device here but the H200's, and *launch*, which no vendor
publishes, is assumed for the others. Where compilers here do not know a device, its target is the
nearest one: `gfx90a` for RX 580 and MI300X, `gfx1100` for 780M, `sm_80` for GTX 1060, `pvc` for
B580.
"""

SOURCES = """\
Who publishes the figures, and what they were compared with: tables of vendors, sources of their
runtimes, and what people report that OpenCL says on such devices.
"""

MODELS = """\
## Models

*perfect* is the time of a device that does each launch at the rates of its data sheet, by
operations or by bytes, and that starts launches in no time. *likely* adds what a launch takes by
itself, cores and lanes that too few work-groups leave idle, bytes that too few work-items ask for
at a time, and the instructions of a kernel's main loop that do not multiply: half, where no
compiler showed them, and of RDNA 3 and 4, whose data sheets count two operations of an
instruction, the empty slots. It tells devices and launches apart; take it for a time to a factor
of two, and for `strict` not even that. *launching* is what of it launches take by themselves.
*groups per core* is of the launch in the middle, and *idle* counts launches with fewer work-groups
than cores.
"""

AIMS = """\
## Aims

What launches take but for what each takes by itself, in bold where it is more than it should be.
"""

IDLE = """\
## Cores without a work-group

Launches with fewer work-groups than cores, of the models that the aims are for, with what all of
them lose to it in a run and why it is so.
"""

KERNELS = """\
## Kernels

A row has all programs of a kernel, which differ by their macros. A cell has *registers* ·
*occupancy* · *multiplying share of the main loop*, each from the least to the most; it is bold
where a program spills or has a stack. Registers are those of a work-item, on Intel's those of a
thread; occupancy is in waves of a scheduler (AMD) and warps of a multiprocessor (NVIDIA), and
Intel's is how many work-items a thread has. The share is of the instructions; behind it, of
`gfx1100` and `gfx1201`, of the slots, of which a vector instruction has two. *local* is bytes of
local memory. `strict` is OpenCL C 1.2 without extensions, which is compiled no further: ✓.
"""
