"""./run test [--config=NAME] [--gpu] [--within=SECONDS] [FILTER]: runs tests with Bazel; ends with
"N passed, N failed" in cases.

FILTER selects targets whose label contains it, and in all others the cases whose name does. A sanitizer
(--config=asan, ubsan, asan_ubsan or tsan) runs the tests of SANITIZED and names the others.
--config=cuda builds what exists with it only, and runs those of its tests that need no GPU. --gpu runs
the others, one at a time.

--within=SECONDS ends after that time, where caches are cold and not all can be built and run: those of FIRST
must have been run by then, and of the others it names the ones that were not reached. Which others come
first is another choice every day.
"""

import argparse
import datetime
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

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


# Where sanitizers find most: threads, memory that is shared, and what is copied while it is written.
FIRST = ("common/dataplane", "server/shard/engine", "server/shard/snapshot", "server/shard/state")
_IN_ONE_RUN = 24
# For Bazel to end what it runs.
_INTERRUPTED_WITHIN = 60


def bazel_test(arguments, seconds=None):
    """The summary, and whether it took longer than that and was interrupted."""
    handle, events = tempfile.mkstemp(prefix="optshard-events-", suffix=".json")
    os.close(handle)
    command = ["bazel", "test", "--keep_going", "--build_event_json_file=" + events, *arguments]
    interrupted = False
    try:
        with subprocess.Popen(command) as process:
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                interrupted = True
                process.send_signal(signal.SIGINT)
                try:
                    code = process.wait(_INTERRUPTED_WITHIN)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = process.wait()
        with open(events, encoding="utf-8") as lines:
            return test_summary.summarize(lines, code, interrupted), interrupted
    finally:
        os.unlink(events)


def runs_in_order(labels, day):
    """Lists of labels: first all of FIRST, then the others, some at a time, in an order of the day's."""
    first = [label for label in labels if label.startswith(tuple("//tests/" + each for each in FIRST))]
    others = sorted(set(labels) - set(first))
    random.Random(day).shuffle(others)
    runs = [first] if first else []
    return runs + [others[k : k + _IN_ONE_RUN] for k in range(0, len(others), _IN_ONE_RUN)]


def run_within(seconds, labels, options):
    """The summary of what is reached in that time."""
    end = time.monotonic() + seconds
    summary = test_summary.Summary()
    runs = runs_in_order(labels, datetime.date.today().toordinal())
    for run_labels in runs:
        left = end - time.monotonic()
        if left <= 0:
            break
        done, interrupted = bazel_test([*options, "--", *run_labels], left)
        summary.add(done)
        if interrupted and run_labels is runs[0]:
            summary.failed.append(("those of FIRST", "were not all reached in %d s" % seconds))
    missing = sorted(set(labels) - summary.reached)
    for label in missing:
        print("NOT REACHED IN TIME %s" % label)
    if missing:
        print("NOT REACHED: %d of %d targets" % (len(missing), len(labels)))
    return summary


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


def run(text, config, gpu, within):
    config = "cuda" if gpu else config
    if text is None and not config and within is None:
        return bazel_test(["//..."])[0]
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
    if within is not None and text is None:
        return run_within(within, whole, options)
    summary = test_summary.Summary()
    if whole:
        summary.add(bazel_test([*options, "--", *whole])[0])
    if by_case:
        summary.add(bazel_test([*options, "--test_filter=*%s*" % text, "--", *by_case])[0])
    return summary


def main(arguments):
    parser = argparse.ArgumentParser(prog="./run test", description="Runs tests with Bazel.")
    parser.add_argument("filter", nargs="?", help="part of a target's label or of a case's name")
    parser.add_argument("--config", help="a configuration of .bazelrc, such as asan_ubsan, tsan or cuda")
    parser.add_argument("--gpu", action="store_true", help="the tests that need a GPU, with --config=cuda")
    parser.add_argument(
        "--within", type=int, metavar="SECONDS", help="end after that time, and name what was not reached"
    )
    options = parser.parse_args(arguments)
    if options.within is not None and (options.filter or options.within < 1):
        parser.error("--within takes a number of seconds, and no FILTER beside it")
    if options.gpu and options.config not in (None, "cuda"):
        parser.error("--gpu is for --config=cuda, not for --config=%s" % options.config)
    try:
        summary = run(options.filter, options.config, options.gpu, options.within)
    except targets.QueryError as error:
        summary = test_summary.Summary()
        summary.failed.append(("bazel query", str(error)))
    sys.stdout.flush()
    print(summary.report(), flush=True)
    return summary.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
