"""Which target may depend on which: the queries of queries.bzl, answered by Bazel."""

import glob
import os
import re
import unittest

_FOLDER = "tests/layering"
_LIBRARY = re.compile(r'^optshard_cc_library\(\s*\n?(?:[^()]*?,\s*)?name = "([^"]+)"', re.MULTILINE)


def _answer(query):
    with open(os.path.join(_FOLDER, query), encoding="utf-8") as lines:
        return [line.strip() for line in lines if line.strip()]


def _declared_libraries(root):
    """Labels of all libraries in BUILD files of the roles that hold the product."""
    labels = set()
    for role in ("common", "server", "client"):
        for build in glob.glob(os.path.join(root, role, "**", "BUILD.bazel"), recursive=True):
            package = os.path.relpath(os.path.dirname(build), root)
            with open(build, encoding="utf-8") as text:
                for name in _LIBRARY.findall(text.read()):
                    labels.add("//%s:%s" % (package, name))
    return labels


class Dependencies(unittest.TestCase):
    def test_common_knows_no_layer_above_it(self):
        self.assertEqual(_answer("common_reaches_up"), [])

    def test_server_knows_no_layer_above_it(self):
        self.assertEqual(_answer("server_reaches_up"), [])

    def test_client_knows_no_layer_above_it(self):
        self.assertEqual(_answer("client_reaches_up"), [])

    def test_domain_targets_do_not_reach_grpc(self):
        self.assertEqual(_answer("domain_reaches_grpc"), [])

    def test_servers_do_not_reach_libtorch(self):
        self.assertEqual(_answer("server_reaches_libtorch"), [])

    def test_queries_find_what_is_there(self):
        for query in ("finds_common", "finds_grpc", "finds_libraries", "finds_libtorch"):
            with self.subTest(query=query):
                self.assertNotEqual(_answer(query), [])

    def test_every_library_is_within_the_queries_scope(self):
        declared = _declared_libraries(os.path.dirname(os.path.realpath("WORKSPACE")))
        self.assertTrue(declared)
        outside = sorted(declared - set(_answer("finds_libraries")))
        self.assertEqual(
            outside, [], "no root in tests/layering/BUILD.bazel depends on these: add one, or use them"
        )


if __name__ == "__main__":
    unittest.main()
