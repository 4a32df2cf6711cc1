"""When clang-tidy looks at a source again."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, "tools")
import tidy


class DigestsTest(unittest.TestCase):
    def setUp(self):
        self._home = os.getcwd()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, self._home)
        os.chdir(directory.name)
        os.makedirs("proto")
        self.write("a.cc", '#include <vector>\n#include "a.h"\n#include "absl/a.h"\n#include"e.h"\n')
        self.write("a.h", '#include "b.h"\n  #  include "proto/c.grpc.pb.h"\n')
        self.write("b.h", '#include "a.h"\n')
        self.write("proto/c.proto", 'import "proto/d.proto";\n')
        self.write("proto/d.proto", "")
        self.write("e.h", "")
        self.write("other.h", "")

    def write(self, path, text):
        with open(path, "w") as file:
            file.write(text)

    def digest(self, arguments=(), surroundings=""):
        return tidy.Digests(surroundings).of("a.cc", arguments)

    def test_every_file_that_it_includes_counts(self):
        before = self.digest()
        for path in ("a.cc", "a.h", "b.h", "e.h", "proto/c.proto", "proto/d.proto"):
            with open(path) as file:
                text = file.read()
            self.write(path, text + "\n")
            self.assertNotEqual(before, self.digest(), path)
            self.write(path, text)
        self.assertEqual(before, self.digest())

    def test_other_files_do_not_count(self):
        before = self.digest()
        self.write("other.h", "changed")
        self.assertEqual(before, self.digest())

    def test_arguments_count_but_not_where_bazel_keeps_its_output(self):
        base = "/home/%s/.cache/bazel/_bazel_%s/0123456789abcdef0123456789abcdef/external/debian"
        before = self.digest(["-I", base % ("me", "me")])
        self.assertEqual(before, self.digest(["-I", base % ("you", "you")]))
        self.assertNotEqual(before, self.digest(["-I", base % ("me", "me"), "-DNDEBUG"]))

    def test_surroundings_count(self):
        self.assertNotEqual(self.digest(), self.digest(surroundings="a newer clang-tidy"))


class CheckAllTest(unittest.TestCase):
    def check_all(self, seconds):
        looked_at = []

        def check(source, _, __):
            looked_at.append(source)
            return "%s: error" % source if source == "bad.cc" else None

        unknown = [(source, None, None) for source in ("a.cc", "bad.cc", "c.cc")]
        output = io.StringIO()
        with mock.patch.object(tidy, "check", check), contextlib.redirect_stdout(output):
            said = list(tidy.check_all(unknown, seconds))
        return said, sorted(looked_at), output.getvalue()

    def test_all_are_looked_at_where_there_is_time(self):
        self.assertEqual(
            (["bad.cc: error"], ["a.cc", "bad.cc", "c.cc"], ""), self.check_all(float("inf"))
        )

    def test_what_is_not_reached_is_named(self):
        said, looked_at, output = self.check_all(0)
        self.assertEqual(([], []), (said, looked_at))
        self.assertIn("NOT REACHED IN TIME c.cc\n", output)
        self.assertTrue(output.endswith("NOT REACHED: 3 of 3 files\n"), output)


class CheckTest(unittest.TestCase):
    def check(self, says, status, unchanged=True):
        with tempfile.TemporaryDirectory() as directory:
            program = os.path.join(directory, "tidy")
            with open(program, "w") as file:
                file.write("#!/bin/sh\nprintf '%s'\nexit %d\n" % (says, status))
            os.chmod(program, 0o755)
            self.addCleanup(setattr, tidy, "TIDY", tidy.TIDY)
            tidy.TIDY = program
            record = os.path.join(directory, "record")
            said = tidy.check("a.cc", record, lambda: record if unchanged else record + "2")
            return said, tidy.is_clean(record)

    def test_only_what_is_clean_is_remembered(self):
        self.assertEqual((None, True), self.check("", 0))
        self.assertEqual(("a.cc:1: error", False), self.check("a.cc:1: error", 1))
        self.assertEqual(("a.cc:1: warning", False), self.check("a.cc:1: warning", 0))
        self.assertEqual(("", False), self.check("", 1))

    def test_what_changes_meanwhile_is_not_remembered(self):
        self.assertEqual((None, False), self.check("", 0, unchanged=False))


class SurroundingsTest(unittest.TestCase):
    def setUp(self):
        home = os.getcwd()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, home)
        self.addCleanup(setattr, tidy, "TIDY", tidy.TIDY)
        self.addCleanup(setattr, tidy, "OPTIONS", tidy.OPTIONS)
        os.chdir(directory.name)
        os.mkdir(".venv")
        for path in (".clang-tidy", ".venv/.stamp"):
            with open(path, "w") as file:
                file.write("before")
        self.install("1")
        tidy.TIDY = "./tidy"

    def install(self, version):
        with open("tidy", "w") as file:
            file.write("#!/bin/sh\necho version %s\n" % version)
        os.chmod("tidy", 0o755)

    def test_settings_wheels_version_and_options_count(self):
        seen = {tidy.surroundings()}
        self.assertEqual(seen, {tidy.surroundings()})
        for path in (".clang-tidy", ".venv/.stamp"):
            with open(path, "w") as file:
                file.write("after")
            seen.add(tidy.surroundings())
        self.install("2")
        seen.add(tidy.surroundings())
        tidy.OPTIONS = ("--quiet",)
        seen.add(tidy.surroundings())
        self.assertEqual(5, len(seen))


class RecordsTest(unittest.TestCase):
    def test_only_old_ones_are_removed(self):
        with tempfile.TemporaryDirectory() as directory:
            old, new = (os.path.join(directory, name) for name in ("old", "new"))
            for path in (old, new):
                with open(path, "w"):
                    pass
            os.utime(old, (0, 0))
            tidy.remove_old(directory)
            self.assertEqual(["new"], os.listdir(directory))
            self.assertTrue(tidy.is_clean(new))
            self.assertFalse(tidy.is_clean(old))


if __name__ == "__main__":
    unittest.main()
