"""Tests of a whole job: a coordinator, shard servers and trainers, as processes."""

load("//third_party:copts.bzl", "optshard_cc_test")

def cluster_test(name, deps):
    """Each test has the machine for itself: leases and deadlines are about seconds.

    Args:
      name: the test; its only source is `name`.cc.
      deps: what it starts the programs with, and what it tests.
    """
    optshard_cc_test(
        name = name,
        size = "medium",
        srcs = [name + ".cc"],
        data = [
            "//server/coordinator:optshard-coordinator",
            "//server/node:optshard-server",
            "//tests/testing:test-trainer",
        ],
        tags = [
            "exclusive",
            "slow",
        ],
        deps = deps,
    )
