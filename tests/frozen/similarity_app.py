"""An application: prints the vectors of sentences, as JSON."""

import json
import sys

import clrt
from clrt.runtime.devices import choose_device
from clrt.runtime.session import session_for


def main() -> None:
    """The arguments are a compiled model and sentences."""
    with clrt.SentenceEncoder(sys.argv[1], device="pocl") as encoder:
        vectors = encoder.encode(sys.argv[2:])
        programs = session_for(choose_device("pocl")).programs
    found = {
        "vectors": vectors.tolist(),
        "builds": programs.builds,
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
