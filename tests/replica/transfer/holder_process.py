"""A process that gives pages away and hangs before the one whose number it is told; ends with its input."""

import json
import sys
import threading
from dataclasses import asdict

from tests.replica.transfer.pages import Source, keys_of, serving

if __name__ == "__main__":
    first = int(sys.argv[1])
    never_read = set(keys_of(1000, first))
    source = Source()
    source.before_read = lambda key: threading.Event().wait() if key in never_read else None
    with serving(source) as server:
        print(json.dumps(asdict(server.address)), flush=True)
        sys.stdin.read()
