"""Prints the labels of the tests nearest to changed files, for `./run check`.

Usage: affected_tests.py FILE..., paths from the root of the workspace. A failing query is an error
(exit code 1). Files that no target reads are named on stderr, and so are tests that another
configuration runs.

Nearest are the tests of the targets that read a file. On the way from a target to its tests lie
libraries that only group others (all update rules), and test support of the same part: what changes in
server/update reaches its tests also through libraries of tests/server/update. Where that finds none,
the search widens, one target at a time, until it finds some.
"""

import itertools
import os
import sys

import targets

# Genqueries read the whole graph: through them, the tests of layering would be near to everything.
_IGNORED_KINDS = ("genquery",)
_LAYERING = "tests/layering"


class Graph:
    """Who reads what."""

    def __init__(self, rules):
        self._rules = {
            label: rule for label, rule in rules.items() if rule.kind not in _IGNORED_KINDS
        }
        self._readers = {}
        self._by_path = {}
        for rule in self._rules.values():
            for label in rule.inputs:
                self._readers.setdefault(label, []).append(rule)
                path = targets.path_of(label)
                if path:
                    self._by_path[path] = label
        self._layering = sorted(
            rule.label for rule in rules.values() if rule.is_test() and rule.package == _LAYERING
        )

    def tests(self, paths):
        """(sorted labels of the nearest tests, files that no target reads)."""
        found, unread = set(), []
        for path in paths:
            owners = self._owners(path)
            if not owners:
                unread.append(path)
            found |= self._nearest(owners, os.path.dirname(path))
        if any(path.endswith((".h", ".cc", ".bazel")) for path in paths):
            found.update(self._layering)
        return sorted(found), unread

    def needs_cuda(self, label):
        """Whether Bazel refuses it without --config=cuda."""
        return self._rules[label].needs_cuda

    def _owners(self, path):
        """The rules that are made from a file, generated sources followed to who compiles them."""
        if os.path.basename(path) == "BUILD.bazel":
            package = os.path.dirname(path)
            return [rule for rule in self._rules.values() if rule.package == package]
        owners, labels = [], [self._by_path[path]] if path in self._by_path else []
        while labels:
            for rule in self._readers.get(labels.pop(), []):
                if rule.kind == "genrule":
                    labels += rule.outputs
                elif rule not in owners:
                    owners.append(rule)
        return owners

    def _nearest(self, owners, folder):
        seen = {rule.label for rule in owners}
        tests = {rule.label for rule in owners if rule.is_test()}
        level = [rule for rule in owners if not rule.is_test()]
        while level:
            beyond = []
            while level:
                for reader in self._readers.get(level.pop().label, []):
                    if reader.label in seen:
                        continue
                    seen.add(reader.label)
                    if reader.is_test():
                        tests.add(reader.label)
                    elif reader.is_group() or _supports(reader, folder):
                        level.append(reader)
                    else:
                        beyond.append(reader)
            level = [] if tests else beyond
        return tests


def _supports(rule, folder):
    """Whether a library is test support of the part that `folder` belongs to."""
    if not rule.testonly or not rule.package.startswith("tests/"):
        return False
    part = rule.package[len("tests/"):]
    return (folder.removeprefix("tests/") + "/").startswith(part + "/")


def main(paths):
    try:
        graph = Graph(targets.query_rules("kind(rule, //...)"))
    except targets.QueryError as error:
        sys.exit(str(error))
    tests, unread = graph.tests(paths)
    for path in unread:
        print("no target reads %s" % path, file=sys.stderr)
    for label in filter(graph.needs_cuda, tests):
        print("only ./run test --config=cuda or --gpu runs %s" % label, file=sys.stderr)
    for label in itertools.filterfalse(graph.needs_cuda, tests):
        print(label)


if __name__ == "__main__":
    main(sys.argv[1:])
