"""./run test [--config=NAME] [--gpu] [FILTER]: runs tests with Bazel; ends with "N passed, N failed" in cases.

FILTER selects targets whose label contains it, and in all others the cases whose name does. A sanitizer
(--config=asan, ubsan, asan_ubsan or tsan) runs the tests of SANITIZED and names the others.
--config=cuda builds what exists with it only, and runs those of its tests that need no GPU. --gpu runs
the others, one at a time.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

import targets
import test_summary

_CASE = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)

# What exists with --config=cuda only (CUDA_ONLY of third_party/cuda/defs.bzl). In another configuration
# Bazel passes over it where it is asked for //..., and fails where it is asked for it by name.
CUDA = "attr(target_compatible_with, needs_config_cuda, //...)"
GPU = "attr(tags, '\\bgpu\\b', tests(//...))"
CUDA_WITHOUT_GPU = "tests(%s) except %s" % (CUDA, GPU)
ALL = "tests(//...) except " + CUDA
SANITIZERS = ("asan", "ubsan", "asan_ubsan", "tsan")
# A sanitizer cannot run two Gloos in one process (docs/decisions/0002), which is what trainers of
# several ranks are. Of what links LibTorch, only the client is therefore tested, and the server
# program with trainers that have no Gloo of their own. Tests of tools and layering run no product,
# and those of deploy and install look at what is packed, which is never built so.
SANITIZED = (
    ALL + " except tests(//tests/tools:all) except tests(//tests/layering/...)"
    " except tests(//tests/deploy/...) except tests(//tests/install/...)"
    " except (rdeps(tests(//...), @libtorch//:torch)"
    " except tests(//tests/client/...) except rdeps(tests(//...), //tests/testing:test-trainer))"
    " except rdeps(tests(//...), //tests/testing:trainers_run)"
    " except //tests/integration:interface_test"
)


def bazel_test(arguments):
    handle, events = tempfile.mkstemp(prefix="optshard-events-", suffix=".json")
    os.close(handle)
    try:
        code = subprocess.call(
            ["bazel", "test", "--keep_going", "--build_event_json_file=" + events, *arguments]
        )
        with open(events, encoding="utf-8") as lines:
            return test_summary.summarize(lines, code)
    finally:
        os.unlink(events)


def has_case(path, text):
    try:
        with open(path, encoding="utf-8") as source:
            return any(text in "%s.%s" % names for names in _CASE.findall(source.read()))
    except FileNotFoundError:  # A generated source.
        return False


def select(rules, text):
    """Labels whose name contains `text`, and labels of which only some cases' names do."""
    whole = sorted(label for label in rules if text in label)
    by_case = sorted(
        label
        for label, rule in rules.items()
        if label not in whole
        and any(has_case(path, text) for path in map(targets.path_of, rule.sources) if path)
    )
    return whole, by_case


def queries(config, gpu):
    """(query of the tests to run, query of those to name since they are not run, or None)."""
    if gpu:
        return GPU, None
    if config == "cuda":
        return CUDA_WITHOUT_GPU, GPU
    if config in SANITIZERS:
        return SANITIZED, "%s except (%s)" % (ALL, SANITIZED)
    return ALL, None


def options_of(config, gpu):
    options = ["--config=" + config] if config else []
    if gpu:
        # They share a GPU. Whether they pass depends on it, which Bazel does not know.
        options += ["--local_test_jobs=1", "--nocache_test_results"]
    return options


def run(text, config, gpu):
    config = "cuda" if gpu else config
    if text is None and not config:
        return bazel_test(["//..."])
    wanted, unwanted = queries(config, gpu)
    options = options_of(config, gpu)
    rules = targets.query_rules(wanted)
    for label in sorted(targets.query_rules(unwanted)) if unwanted else []:
        print("NOT IN THIS STAGE %s" % label)
    whole, by_case = (sorted(rules), []) if text is None else select(rules, text)
    if not whole and not by_case:
        print("no test target or case has %r in its name" % text)
    if text is None and config == "cuda" and not gpu:
        # All that can go wrong without a GPU: what needs one is compiled and linked.
        whole = sorted(targets.query_rules(CUDA))
        options.append("--test_tag_filters=-gpu")
    summary = test_summary.Summary()
    if whole:
        summary.add(bazel_test([*options, "--", *whole]))
    if by_case:
        summary.add(bazel_test([*options, "--test_filter=*%s*" % text, "--", *by_case]))
    return summary


def main(arguments):
    parser = argparse.ArgumentParser(prog="./run test", description="Runs tests with Bazel.")
    parser.add_argument("filter", nargs="?", help="part of a target's label or of a case's name")
    parser.add_argument("--config", help="a configuration of .bazelrc, such as asan_ubsan, tsan or cuda")
    parser.add_argument("--gpu", action="store_true", help="the tests that need a GPU, with --config=cuda")
    options = parser.parse_args(arguments)
    if options.gpu and options.config not in (None, "cuda"):
        parser.error("--gpu is for --config=cuda, not for --config=%s" % options.config)
    try:
        summary = run(options.filter, options.config, options.gpu)
    except targets.QueryError as error:
        summary = test_summary.Summary()
        summary.failed.append(("bazel query", str(error)))
    sys.stdout.flush()
    print(summary.report(), flush=True)
    return summary.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
