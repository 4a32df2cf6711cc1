"""That the benchmarks' programs show their flags and refuse what is none."""

import subprocess
import unittest

_TIMEOUT_S = 60
# Program and a flag of it.
_PROGRAMS = (
    ("optshard-bench-bytes", "--message-bytes"),
    ("optshard-bench-bytes-moved", "--how"),
    ("optshard-bench-coordinator", "--ranks-per-node"),
    ("optshard-bench-gloo", "--megabytes"),
    ("optshard-bench-memory", "--replicas"),
    ("optshard-bench-ping-pong", "--rendezvous"),
    ("optshard-bench-tcp-ping-pong", "--rendezvous"),
    ("optshard-bench-tcp-stream", "--network"),
    ("optshard-bench-transfer", "--bucket-bytes"),
    ("update_rules", "--elements"),
)


def _run(program, *arguments):
    return subprocess.run(
        ["benchmarks/" + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=_TIMEOUT_S,
    )


class BenchHelp(unittest.TestCase):
    def test_Help_ShowsTheProgramsFlags(self):
        for program, flag in _PROGRAMS:
            with self.subTest(program=program):
                self.assertIn(flag, _run(program, "--help").stdout)

    def test_StrayArgument_IsNamed(self):
        for program, _ in _PROGRAMS:
            with self.subTest(program=program):
                result = _run(program, "stray")
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn("unexpected argument stray", result.stdout)


if __name__ == "__main__":
    unittest.main()
