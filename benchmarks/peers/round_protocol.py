"""A contestant's end of the round protocol: one process a rank, driven over stdin and stdout.

The process prints one JSON object a line and nothing else to stdout:
    {"ready": true, ...}                    once, when it is set up
    {"start_ns": ..., "end_ns": ...}        for each line "go": one round, on the monotonic clock
    {...}                                   for each line "check": what the rounds have led to
End of input ends it. The driver takes the time from the first rank's start to the last one's end, so
a round needs no barrier of its own.
"""

import json
import os
import sys
import time


class Driver:
    """The pipes to the driver. Made first of all: whatever else writes to stdout then reaches stderr."""

    def __init__(self):
        self._pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def _say(self, message):
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()

    def serve(self, one_round, check, detail, after_round=lambda: None):
        """Runs rounds until the input ends.

        Args:
          one_round: called for each round; returns when the rank has finished it.
          check: returns a dict of what the rounds have led to.
          detail: a dict that goes out with the readiness.
          after_round: called after each round, and not measured; makes the next one possible.
        """
        self._say({"ready": True, **detail})
        for line in sys.stdin:
            command = line.strip()
            if command == "go":
                start = time.monotonic_ns()
                one_round()
                end = time.monotonic_ns()
                after_round()
                self._say({"start_ns": start, "end_ns": end})
            elif command == "check":
                self._say(check())
            else:
                raise ValueError("no command %r: go, check" % command)
