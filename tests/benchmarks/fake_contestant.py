"""A contestant for tests: speaks the round protocol and misbehaves on demand.

Usage: fake_contestant.py BEHAVIOUR, one of
    good MS [SUM]     each round takes exactly MS milliseconds of its own clock; checks give SUM
    silent            never gets ready
    dies              exits with status 3 before it is ready, leaving a line on stderr
    error             says what went wrong instead of being ready
    chatty            writes a line that is not JSON
    hangs_in_round N  does not answer round N; ignores that its input ends
    child             as hangs_in_round 0, with a child process that sleeps, whose id it gives
"""

import json
import subprocess
import sys
import time


def say(message):
    print(json.dumps(message), flush=True)


def rounds(milliseconds, answer, hang_at=None):
    now = 0
    for number, line in enumerate(sys.stdin):
        if number == hang_at:
            break
        if line == "go\n":
            say({"start_ns": now, "end_ns": now + int(milliseconds * 1e6)})
            now += 10**9
        else:
            say(answer)


def main(behaviour, *arguments):
    if behaviour == "dies":
        print("no luck today", file=sys.stderr)
        sys.exit(3)
    if behaviour == "error":
        say({"error": "nobody at the door"})
    elif behaviour == "chatty":
        print("hello", flush=True)
    elif behaviour == "good":
        say({"ready": True, "version": "7"})
        rounds(float(arguments[0]), {"sum": float(arguments[1]) if len(arguments) > 1 else 1.0})
        return
    elif behaviour == "hangs_in_round":
        say({"ready": True})
        rounds(1, {"sum": 1.0}, hang_at=int(arguments[0]))
    elif behaviour == "child":
        child = subprocess.Popen(["sleep", "600"])
        say({"ready": True, "child": child.pid})
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
