"""Application that prints sentence vectors as JSON."""

import json
import os
import sys

import clrt
from clrt.runtime.opencl.devices import choose_device
from clrt.runtime.opencl.session import session_for


def main() -> None:
    """Encodes sentences; arguments: compiled model, sentences."""
    device = os.environ.get("CLRT_DEVICE", "pocl")
    with clrt.SentenceEncoder(sys.argv[1], device=device) as encoder:
        vectors = encoder.encode(sys.argv[2:])
        programs = session_for(choose_device(device)).programs
    found = {
        "vectors": vectors.tolist(),
        "builds": programs.builds,
        "platforms": [d.platform for d in clrt.devices()],
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
