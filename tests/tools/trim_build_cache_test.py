"""What tools/trim_build_cache.py removes."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

from tools import trim_build_cache

_BLOCK = 4096


class TrimBuildCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._folder = folder.name
        for part in ("ac", "cas"):
            os.mkdir(os.path.join(self._folder, part))

    def add(self, name, used, blocks=1):
        path = os.path.join(self._folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * (blocks * _BLOCK))
        os.utime(path, (used, used))
        return path

    def names(self):
        return sorted(
            os.path.relpath(os.path.join(folder, name), self._folder)
            for folder, _, names in os.walk(self._folder)
            for name in names
        )

    def trim(self, most, free=0, disk=0):
        return trim_build_cache.trim(self._folder, most, free, lambda _: disk)

    def test_longest_unused_go_first(self):
        self.add("cas/aa/old", used=1000)
        self.add("ac/bb/new", used=3000)
        self.add("cas/cc/middle", used=2000)
        self.assertEqual(self.trim(most=2 * _BLOCK), (_BLOCK, 2 * _BLOCK, 0))
        self.assertEqual(self.names(), ["ac/bb/new", "cas/cc/middle"])

    def test_read_since_it_was_written_counts_as_used(self):
        read = self.add("cas/aa/read", used=1000)
        os.utime(read, (5000, 1000))
        self.add("cas/bb/written", used=3000)
        self.trim(most=_BLOCK)
        self.assertEqual(self.names(), ["cas/aa/read"])

    def test_little_enough_all_stays(self):
        self.add("cas/aa/one", used=1000)
        self.assertEqual(self.trim(most=_BLOCK, free=7, disk=7), (0, _BLOCK, 0))
        self.assertEqual(self.names(), ["cas/aa/one"])

    def test_disk_is_full_goes_on_until_it_is_not(self):
        self.add("cas/aa/one", used=1000)
        self.add("cas/bb/two", used=2000)
        self.add("cas/cc/three", used=3000)
        self.assertEqual(
            self.trim(most=100 * _BLOCK, free=10 * _BLOCK, disk=8 * _BLOCK), (2 * _BLOCK, _BLOCK, 0)
        )
        self.assertEqual(self.names(), ["cas/cc/three"])

    def test_cache_is_not_enough_says_what_is_lacking(self):
        self.add("cas/aa/one", used=1000)
        self.assertEqual(
            self.trim(most=100 * _BLOCK, free=10 * _BLOCK, disk=5 * _BLOCK), (_BLOCK, 0, 4 * _BLOCK)
        )

    def test_file_that_is_gone_meanwhile_counts_for_nothing(self):
        self.add("cas/aa/new", used=2000)
        gone = (1000, _BLOCK, os.path.join(self._folder, "cas/aa/gone"))
        found = [gone, *trim_build_cache.entries(self._folder)]
        with mock.patch.object(trim_build_cache, "entries", return_value=found):
            self.assertEqual(self.trim(most=0), (_BLOCK, 0, 0))
        self.assertEqual(self.names(), [])

    def test_what_is_no_output_of_bazel_stays(self):
        self.add("cas/aa/one", used=1000)
        self.add("notes", used=500)
        self.add("other/two", used=500)
        self.trim(most=0)
        self.assertEqual(self.names(), ["notes", "other/two"])

    def refuse(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            trim_build_cache.main(list(arguments))
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_directory_that_is_no_cache_is_refused_and_left_alone(self):
        self.add("cas/aa/one", used=1000)
        os.rmdir(os.path.join(self._folder, "ac"))
        self.assertIn(self._folder + " is no disk cache of Bazel", self.refuse("--most=0", self._folder))
        self.assertEqual(self.names(), ["cas/aa/one"])

    def test_number_that_is_none_is_refused(self):
        for given in ("-1", "nan", "inf", "much"):
            self.assertIn("--most", self.refuse("--most=" + given, self._folder))

    def test_no_directory_is_no_error(self):
        missing = os.path.join(self._folder, "missing")
        self.assertEqual(trim_build_cache.main([missing]), 0)
        self.assertFalse(os.path.exists(missing))


if __name__ == "__main__":
    unittest.main()
