"""checkpoint_write, checkpoint_stall and checkpoint_load: the recipe's parameters and Adam state, 960 MB,
two ranks."""

import os
import tempfile

import recipe
from harness.benchmark import Benchmark, Part
from harness.contestant import Group

_BYTES = 3 * 4 * recipe.PARAMETERS
_PROGRAM = "optshard-bench-checkpoint"


class _Checkpoints(Benchmark):
    """What the entries share: contestants that have a directory each."""

    def _ours(self, start, name, title, role, actions, *arguments, **kwargs):
        arguments = [
            "--gradients=reduce",
            "--round=" + actions,
            "--directory=" + self.meeting_place("checkpoints-" + name),
            *arguments,
        ]
        return start(name, title, role, _PROGRAM, arguments, **kwargs)

    def _worked(self, start, name, title, role, actions):
        # Ours, whose ranks wait for each other: forward and backward do not take equally long.
        meeting_place = self.meeting_place("worked-" + name)
        os.mkdir(meeting_place)
        return self._ours(start, name, title, role, actions, "--meeting_place=" + meeting_place)

    def _peer(self, name, title, actions):
        arguments = ["--round=" + actions, "--directory=" + self.meeting_place("checkpoints-" + name)]
        return self.peer(name, title, "peer", "checkpoint.py", arguments)

    def _moved(self, name, title, how):
        directory = self.meeting_place("bytes-" + name)
        os.mkdir(directory)
        arguments = ["--how=" + how, "--bytes=%d" % _BYTES, "--directory=" + directory]
        return self.program(
            name, title, "limit: " + name, "optshard-bench-bytes-moved", arguments
        )


class CheckpointWrite(_Checkpoints):
    name = "checkpoint_write"
    title = "a checkpoint of %s and its Adam state, 960 MB, until it is committed, 2 ranks" % recipe.TITLE

    def contestants(self):
        return [
            self._ours(self.sharded, "ours", "optshard", "ours", "save,wait"),
            self._ours(
                self.attached, "attached", "optshard, attached to a server", "reference", "save,wait"
            ),
            self._peer("dcp", "torch dcp.save", "save"),
            self._moved("disk", "the same bytes written to two files and synced", "write"),
        ]


class CheckpointStall(_Checkpoints):
    name = "checkpoint_stall"

    def parts(self):
        return [
            Part(
                "checkpoint_stall",
                "save_checkpoint of 960 MB and the step of %s that follows at once, 2 ranks"
                % recipe.TITLE,
                [
                    self._ours(self.sharded, "ours", "optshard", "ours", "save,step"),
                    self._ours(
                        self.attached, "attached", "optshard, attached to a server", "reference",
                        "save,step",
                    ),
                    self._ours(self.sharded, "step", "a step", "limit: step", "step"),
                    self._peer("dcp", "torch dcp.async_save, the call alone", "start"),
                    self._moved("memory", "the same bytes copied in memory", "copy"),
                ],
            ),
            Part(
                "checkpoint_stall_behind",
                "the same with forward and backward between them, whose time does not count",
                [
                    self._worked(self.sharded, "behind", "optshard", "ours", "save,work,step"),
                    self._worked(
                        self.attached, "behind_attached", "optshard, attached to a server",
                        "reference", "save,work,step",
                    ),
                    self._worked(
                        self.sharded, "behind_step", "a step after forward and backward",
                        "limit: step", "work,step",
                    ),
                ],
            ),
            Part(
                "checkpoint_stall_iteration",
                "the same, all of which counts",
                [
                    self._ours(self.sharded, "iteration", "optshard", "ours", "save,train,step"),
                    self._ours(
                        self.sharded, "iteration_step", "forward, backward and a step",
                        "limit: step", "train,step",
                    ),
                ],
            ),
        ]

    # The stall is what comes on top of a step.
    limits_add_up = True

    def finish(self, entries, out):
        return "\n".join(
            "- %s: %.1f ms more than a step (medians)"
            % (entry["name"], entry["ours_ms"] - _median_of(entry, "step"))
            for entry in entries
            if entry["ours_ms"] is not None and _median_of(entry, "step") is not None
        )


def _median_of(entry, name_end):
    found = [each["ms"] for each in entry["contestants"] if each["name"].endswith(name_end)]
    return found[0] if found else None


class CheckpointLoad(_Checkpoints):
    name = "checkpoint_load"
    title = "load_checkpoint of the same 960 MB, which two ranks have saved, from the page cache"

    def _save(self, directory):
        """A checkpoint of two ranks, for contestants that only load."""
        arguments = ["--round=save,wait", "--keep", "--directory=" + directory]
        saving = self.sharded("saving", "saving", "reference", _PROGRAM, arguments)
        with tempfile.TemporaryDirectory() as logs:
            group = Group(saving, logs)
            try:
                group.wait_ready(self.step_timeout_s)
                group.run_round(self.step_timeout_s)
            finally:
                group.end()

    def contestants(self):
        saved = self.meeting_place("saved")
        self._save(saved)
        arguments = ["--round=load", "--keep", "--directory=" + saved]
        return [
            self.sharded("ours", "optshard", "ours", _PROGRAM, arguments),
            self.attached(
                "attached", "optshard, attached to a server", "reference", _PROGRAM, arguments
            ),
            self.sharded(
                "three", "optshard, at 3 ranks", "reference", _PROGRAM, arguments, world_size=3
            ),
            self._peer("dcp", "torch dcp.load", "load"),
            self._moved("disk", "the same bytes read from two files", "read"),
        ]
