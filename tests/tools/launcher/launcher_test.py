"""optshard-run with the real coordinator and shard server, and shell scripts as trainers."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tests", "tools", "launcher"))

from launched import PATIENCE_S, PROGRAM, Launched, Prepared, environment, wait_until  # noqa: E402

_WAITS = "echo up; exec sleep 1000"
# Leaves a daemon in a session of its own, and a child; neither ends by itself.
_BREEDS = "setsid sh -c 'exec sleep 1000' & sleep 1000 & echo up; wait"


def _sh(script):
    return ("--", "/bin/sh", "-c", script)


class Case(unittest.TestCase):
    def assertNothingIsLeft(self, job):
        wait_until(lambda: not job.living(), "no process %s" % job.living())
        wait_until(lambda: not job.left_files(), "no file %s" % job.left_files())

    def run_to_the_end(self, *words, **variables):
        """Exit code, stdout and stderr."""
        with Launched(*words, **variables) as job:
            code = job.wait()
            self.assertNothingIsLeft(job)
            return code, job.stdout, job.stderr


class Running(Case):
    def test_Trainers_HaveTorchrunsVariables_AndTheSocketIsPrivate(self):
        script = (
            'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $OPTSHARD_JOB";'
            'test -S "${OPTSHARD_ATTACH#unix:}" && stat -c "mode %a" "$(dirname "${OPTSHARD_ATTACH#unix:}")";'
            'echo "coordinator $OPTSHARD_COORDINATOR master $MASTER_ADDR:$MASTER_PORT"'
        )
        code, out, err = self.run_to_the_end("-n", "2", "--job=gan", *_sh(script))
        self.assertEqual(code, 0, err)
        for rank in (0, 1):
            self.assertIn("[rank %d] %d %d 2 2 0 gan\n" % (rank, rank, rank), out)
            self.assertIn("[rank %d] mode 700\n" % rank, out)
        self.assertRegex(out, r"coordinator 127\.0\.0\.1:\d+ master 127\.0\.0\.1:\d+\n")
        self.assertRegex(err, r"optshard-run: job gan: ranks 0 to 1 of 2, coordinator at 127\.0\.0\.1:")

    def test_WithoutServer_TrainersEmbedTheirOwners(self):
        code, out, err = self.run_to_the_end("-n", "1", "--no-server", *_sh("echo $OPTSHARD_ATTACH"))
        self.assertEqual((code, out), (0, "[rank 0] embedded\n"), err)

    def test_Output_OfManyRanks_HasWholeLines(self):
        # In two pieces, so that those of two ranks would mix.
        script = 'i=0; while [ $i -lt 500 ]; do printf "a $RANK "; printf "b $i\\n"; i=$((i+1)); done'
        code, out, err = self.run_to_the_end("-n", "4", "--no-server", *_sh(script))
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        self.assertEqual(len(lines), 4 * 500)
        for rank in range(4):
            mine = [line for line in lines if line.startswith("[rank %d] " % rank)]
            self.assertEqual(mine, ["[rank %d] a %d b %d" % (rank, rank, i) for i in range(500)])

    def test_Output_IsColouredOnATerminalOnly(self):
        master, terminal = pty.openpty()
        try:
            with Launched("-n", "1", "--no-server", *_sh("echo x"), stdout=terminal, TERM="xterm") as job:
                self.assertEqual(job.wait(), 0, job.stderr)
                self.assertEqual(os.read(master, 1000), b"\x1b[36m[rank 0]\x1b[0m x\r\n")
            with Launched(
                "-n", "1", "--no-server", *_sh("echo x"), stdout=terminal, TERM="xterm", NO_COLOR="1"
            ) as job:
                self.assertEqual(job.wait(), 0, job.stderr)
                self.assertEqual(os.read(master, 1000), b"[rank 0] x\r\n")
        finally:
            os.close(master)
            os.close(terminal)

    def test_Output_NobodyReadsIt_TheJobGoesOn(self):
        reader, writer = os.pipe()
        os.close(reader)
        script = "echo lost; echo seen >&2"
        try:
            with Launched("-n", "1", "--no-server", *_sh(script), stdout=writer) as job:
                self.assertEqual(job.wait(), 0, job.stderr)
                self.assertIn("[rank 0] seen\n", job.stderr)
        finally:
            os.close(writer)

    def test_Slurm_SaysHowManyRanks(self):
        slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "3"}
        code, out, err = self.run_to_the_end("--no-server", *_sh("echo $WORLD_SIZE"), **slurm)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[rank %d] 3" % rank for rank in range(3)])


class Failing(Case):
    def test_OneFails_AllEnd_WithItsCodeAndItsLastLines(self):
        script = "if [ $RANK = 1 ]; then echo reason one >&2; echo reason two >&2; exit 3; fi; exec sleep 1000"
        code, _, err = self.run_to_the_end("-n", "3", *_sh(script))
        self.assertEqual(code, 3, err)
        self.assertRegex(
            err,
            r"optshard-run: the last lines of rank 1 on stderr:\n"
            r"optshard-run:   reason one\noptshard-run:   reason two\n"
            r"optshard-run: rank 1 \(process \d+\) failed with exit code 3; the exit code is 3\n$",
        )

    def test_OneIsKilled_TheSignalIsNamed(self):
        script = "[ $RANK = 0 ] && kill -9 $$; exec sleep 1000"
        code, _, err = self.run_to_the_end("-n", "2", *_sh(script))
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertRegex(err, r"rank 0 \(process \d+\) was killed by SIGKILL; the exit code is 137\n$")

    def test_OneFails_WithRestarts_IsReplaced(self):
        script = (
            "echo life $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS;"
            "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 5; exit 0"
        )
        code, out, err = self.run_to_the_end("-n", "2", "--max-restarts=2", *_sh(script))
        self.assertEqual(code, 0, err)
        for life in range(3):
            self.assertIn("[rank 1] life %d of 2\n" % life, out)
        self.assertIn("exit code 5; it is started again (restart 2 of 2)", err)
        code, _, err = self.run_to_the_end("-n", "2", "--max-restarts=1", *_sh(script))
        self.assertEqual(code, 5, err)

    def test_OneFails_WhatItStartedEndsWithIt(self):
        code, _, err = self.run_to_the_end("-n", "1", *_sh("sleep 1000 & setsid sleep 1000 & exit 4"))
        self.assertEqual(code, 4, err)

    def test_Coordinator_PortIsTaken_ItsErrorIsShown(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            code, out, err = self.run_to_the_end("-n", "1", "--coordinator=" + address, *_sh("echo x"))
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("[coordinator] optshard-coordinator: ", err)
        self.assertIn(address, err.replace("--coordinator=", ""))
        self.assertRegex(err, r"coordinator \(process \d+\) failed with exit code 1; the exit code is 1\n$")

    def test_Services_OptionsThatAreWrong_EndTheJobWithTheirError(self):
        for option, said in (
            ("--server-options=--memory-limit=much", "[server] optshard-server: --memory-limit=much"),
            ("--coordinator-options=--nothing", "[coordinator] optshard-coordinator: unknown option"),
        ):
            with self.subTest(option=option):
                code, out, err = self.run_to_the_end("-n", "1", option, *_sh("echo x"))
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn(said, err)

    def test_OtherNodesCoordinator_IsNotThere_IsSaidInTime(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % unused.getsockname()[1]
            code, out, err = self.run_to_the_end(
                "-n", "1", "--nnodes=2", "--node-rank=1", "--coordinator=" + address,
                "--start-timeout=500ms", *_sh("echo x"),
            )
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("the coordinator was not reached at %s (%s: Connection refused" % (address, address), err)
        self.assertIn("within 500ms", err)


class Ending(Case):
    def test_CtrlC_TrainersGetIt_ThenAllEnd(self):
        script = "trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.05; done"
        with Launched("-n", "2", *_sh(script)) as job:
            job.wait_for("up", 2)
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.stderr)
            self.assertNothingIsLeft(job)
            self.assertEqual(job.stdout.count("saved"), 2, job.stdout)
            self.assertTrue(job.stderr.endswith("optshard-run: stopped by SIGINT; the exit code is 130\n"))

    def test_Sigterm_WhatTrainersLeaveBehind_EndsToo(self):
        with Launched("-n", "2", *_sh(_BREEDS)) as job:
            job.wait_for("up", 2)
            self.assertGreaterEqual(len(job.living()), 10)
            job.process.send_signal(signal.SIGTERM)
            self.assertEqual(job.wait(), 143, job.stderr)
            self.assertNothingIsLeft(job)

    def test_CtrlC_TrainersThatDoNotEnd_AreKilledAfterTheGrace(self):
        with Launched("-n", "1", "--grace=200ms", *_sh("trap '' INT TERM; " + _WAITS)) as job:
            job.wait_for("up")
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.stderr)
            self.assertNothingIsLeft(job)
            self.assertIn("did not end in time, and is killed", job.stderr)

    def test_SecondCtrlC_KillsAtOnce(self):
        with Launched("-n", "1", "--grace=1h", *_sh("trap '' INT TERM; " + _WAITS)) as job:
            job.wait_for("up")
            job.process.send_signal(signal.SIGINT)
            wait_until(lambda: "the trainers get it" in job.stderr, "the first one is seen")
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.stderr)
            self.assertNothingIsLeft(job)

    def test_LauncherIsKilled_NothingIsLeft(self):
        with Launched("-n", "2", *_sh(_BREEDS)) as job:
            job.wait_for("up", 2)
            job.process.kill()
            job.wait()
            self.assertNothingIsLeft(job)

    def test_RunnerIsKilled_NothingIsLeft_AndItIsSaid(self):
        with Launched("-n", "2", *_sh(_BREEDS)) as job:
            job.wait_for("up", 2)
            os.kill(job.runner(), signal.SIGKILL)
            self.assertEqual(job.wait(), 137, job.stderr)
            self.assertNothingIsLeft(job)
            self.assertIn("which ran the job, was killed by SIGKILL", job.stderr)

    def test_BothAreKilled_NoProcessIsLeft(self):
        with Launched("-n", "2", *_sh(_WAITS)) as job:
            job.wait_for("up", 2)
            both = (job.runner(), job.process.pid)
            for pid in both:
                os.kill(pid, signal.SIGSTOP)
            for pid in both:
                os.kill(pid, signal.SIGKILL)
            job.wait()
            wait_until(lambda: not job.living(), "no process %s" % job.living())

    def test_KeeperIsKilled_TheJobEnds(self):
        with Launched("-n", "1", *_sh(_WAITS)) as job:
            job.wait_for("up")
            (keeper,) = job.living("optshard-keeper")
            os.kill(keeper, signal.SIGKILL)
            self.assertEqual(job.wait(), 137, job.stderr)
            self.assertNothingIsLeft(job)
            self.assertRegex(job.stderr, r"server \(process \d+\) was killed by SIGKILL; the exit code")

    def test_ServerIsKilled_BeforeItHosts_TheJobEnds(self):
        with Launched("-n", "1", *_sh(_WAITS)) as job:
            job.wait_for("up")
            (server,) = job.living("optshard-server")
            os.kill(server, signal.SIGKILL)
            self.assertEqual(job.wait(), 137, job.stderr)
            self.assertNothingIsLeft(job)


class Terminal(Case):
    """In a session of its own, with a terminal."""

    _SAVES = "trap 'echo saved; exit 0' INT HUP; echo up; while :; do sleep 0.05; done"

    def _start(self, job):
        """The number of the launcher's process and the terminal's other end."""
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                os.execve(PROGRAM, [PROGRAM, "-n", "1", *_sh(self._SAVES)], job.environment)
            finally:
                os._exit(99)
        shown = b""
        # The whole line: the random names in the launcher's own may have these letters, too.
        while b"[rank 0] up" not in shown:
            shown += os.read(terminal, 1000)
        return pid, terminal

    def test_CtrlC_IsPassedOnOnce(self):
        with Prepared() as job:
            pid, terminal = self._start(job)
            os.write(terminal, b"\x03")
            shown = b""
            try:
                while True:
                    shown += os.read(terminal, 1000)
            except OSError:  # all processes with this terminal have ended
                pass
            os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130, shown)
            self.assertIn(b"saved", shown)
            self.assertNotIn(b"all processes are killed", shown)
            self.assertNothingIsLeft(job)

    def test_ItsEnd_EndsTheJob(self):
        with Prepared() as job:
            pid, terminal = self._start(job)
            os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 128 + signal.SIGHUP)
            self.assertNothingIsLeft(job)


class BadInput(unittest.TestCase):
    def test_CommandLines_EndWith2_AndSayWhatIsWrong(self):
        for words, said in (
            (("-n", "2"), "PROGRAM is missing"),
            (("-n", "2", "--"), "PROGRAM is missing"),
            (("-n", "0", "--", "true"), "--nproc-per-node=0: expected a whole number of at least 1"),
            (("--", "true"), "-n is missing"),
            (("-n", "1", "true"), "unexpected argument true"),
            (("-n", "1", "--", "./no_such_trainer"), "there is no program ./no_such_trainer"),
            (("-n", "1", "--", "no_such_trainer"), "in the folders of PATH"),
            (("-n", "1", "--", "/tmp"), "/tmp is a folder"),
            (("-n", "1", "--", "/etc/passwd"), "cannot be executed: Permission denied"),
            (("-n", "1", "--nnodes=2", "--node-rank=0", "--", "true"), "--coordinator is missing"),
            (("-n", "1", "--nnodes=2", "--node-rank=2", "--coordinator=a:1", "--", "true"), "expected 0 to 1"),
            (("-n", "1", "--nnodes=2", "--coordinator=a:1", "--", "true"), "--node-rank is missing"),
            (("-n", "1", "--coordinator=a", "--", "true"), "expected HOST:PORT"),
            (("-n", "1", "--no-server", "--max-restarts=1", "--", "true"), "--max-restarts with --no-server"),
            (("-n", "1", "--server-binary=/no/server", "--", "true"), "no optshard-server to run at /no/server"),
        ):
            with self.subTest(words=words):
                result = subprocess.run(
                    [PROGRAM, *words],
                    env=environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=PATIENCE_S,
                )
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertTrue(re.match("optshard-run: ", result.stderr), result.stderr)
                self.assertIn(said, result.stderr)


if __name__ == "__main__":
    unittest.main()
