"""Who may include what.

Headers of Debian's packages lie in /usr/include, where every target sees them, so what the targets
depend on proves nothing about them: this reads the #include lines of all sources.
"""

import os
import re
import tempfile
import unittest

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_SOURCES = (".h", ".cc", ".cu", ".cuh", ".inc")
_ROOTS = ("common", "server", "client", "examples", "benchmarks", "tests", "tools")

_RPC_FILE = re.compile(r"(_service|_rpc|_server|_main)\.(h|cc)$")

# Of common/, what users of the client get to see.
_VALUE_TYPES = (
    "bucket",
    "errors",
    "gradient_mode",
    "hyperparameters",
    "ids",
    "partition",
    "step_info",
)

# What is included -> where that is allowed, as (explanation, predicate of the path).
_RULES = [
    (
        re.compile(r"^grpc(pp|)/|\.grpc\.pb\.h$"),
        "gRPC belongs to adapters (*_service.*, *_rpc.*, *_server.*), mains (*_main.cc) and tests",
        lambda path: _RPC_FILE.search(path) or path.startswith("tests/"),
    ),
    (
        re.compile(r"^(torch|ATen|c10)/"),
        "LibTorch belongs to client/, examples/, benchmarks/ and tests/",
        lambda path: path.startswith(("client/", "examples/", "benchmarks/", "tests/")),
    ),
    (
        re.compile(r"^gloo/"),
        "Gloo belongs to common/dataplane/gloo/ and its tests",
        lambda path: path.removeprefix("tests/").startswith("common/dataplane/gloo/"),
    ),
    (
        re.compile(r"^hwy/"),
        "Highway belongs to loops over elements: server/update/, common/simd/, tree_average,"
        " dtype_conversion, the blocks of codes and parameter_correction, their tests and their benchmark",
        lambda path: path.removeprefix("tests/").startswith("server/update/")
        or path.startswith((
            "common/simd/",
            "common/dataplane/tree_average.",
            "common/dtype_conversion.",
            "common/companded_blocks.",
            "common/dynamic_blocks.",
            "common/parameter_correction.",
            "tests/testing/simd_targets.",
            "benchmarks/step_main.cc",  # measures one instruction set beside another
        )),
    ),
    (
        re.compile(r"^(server|client|examples|benchmarks|tests)/"),
        "common/ knows none of the layers above it",
        lambda path: not path.startswith("common/"),
    ),
    (
        re.compile(r"^(client|examples|benchmarks|tests)/"),
        "server/ knows none of the layers above it",
        lambda path: not path.startswith("server/"),
    ),
    (
        re.compile(r"^(examples|benchmarks|tests)/"),
        "client/ knows none of the layers above it",
        lambda path: not path.startswith("client/"),
    ),
    (
        re.compile(r"^(grpc|grpcpp|nccl|cuda|cuda_runtime|driver_types)\b|\.grpc\.pb\.h$"),
        "headers of the client carry no gRPC, NCCL or CUDA type",
        lambda path: not re.match(r"client/.*\.h$", path),
    ),
    (
        re.compile(r"^(server/|proto/|client/[^/]+/|common/(?!(%s)\.h$))" % "|".join(_VALUE_TYPES)),
        "users' headers include other users' headers, common's value types, LibTorch and absl only",
        lambda path: not re.match(r"client/[^/]+\.h$", path),
    ),
]


def violations(root):
    """One line for each #include of the workspace at `root` that breaks a rule."""
    found = []
    for path in _sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as source:
            includes = _INCLUDE.findall(source.read())
        for include in includes:
            for pattern, why, allowed in _RULES:
                if pattern.search(include) and not allowed(path):
                    found.append("%s includes %s: %s" % (path, include, why))
    return found


def _sources(root):
    for top in _ROOTS:
        for folder, _, files in os.walk(os.path.join(root, top)):
            for file in sorted(files):
                if file.endswith(_SOURCES):
                    yield os.path.relpath(os.path.join(folder, file), root)


def _workspace():
    # The runfiles hold a link to the real WORKSPACE: all sources of all packages lie beside it, also
    # of packages written later. The test is marked `external`, so Bazel always runs it.
    return os.path.dirname(os.path.realpath("WORKSPACE"))


class Includes(unittest.TestCase):
    def test_workspace_breaks_no_rule(self):
        root = _workspace()
        self.assertTrue(list(_sources(root)), "no sources below " + root)
        self.assertEqual(violations(root), [])

    def _violations_of(self, path, line):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.dirname(os.path.join(root, path)))
            with open(os.path.join(root, path), "w", encoding="utf-8") as source:
                source.write(line + "\n")
            return violations(root)

    def test_planted_includes_are_found(self):
        for path, line in [
            ("common/plan.cc", "#include <grpcpp/grpcpp.h>"),
            ("server/shard/shard_owner.h", '#include "proto/optshard/v1/shard_owner.grpc.pb.h"'),
            ("server/shard/shard_owner.cc", "#include <torch/types.h>"),
            ("common/dtype.h", "#  include <ATen/core/Tensor.h>"),
            ("client/gloo.cc", "#include <gloo/context.h>"),
            ("common/simd.cc", '#include "hwy/highway.h"'),
            ("common/plan.cc", '#include "server/shard/shard_owner.h"'),
            ("server/shard/shard_owner.cc", '#include "client/options.h"'),
            ("client/sharded_optimizer.cc", '#include "tests/testing/fake_clock.h"'),
            ("client/sharded_optimizer.h", "#include <cuda_runtime.h>"),
            ("client/sharded_optimizer.h", "#include <nccl.h>"),
            ("client/sharded_optimizer.h", '#include "server/update/update_rule.h"'),
            ("client/sharded_optimizer.h", '#include "client/owner/client_seams.h"'),
            ("client/rule_options.h", '#include "common/dataplane/data_plane.h"'),
            ("client/rule_options.h", '#include "common/log.h"'),
            ("client/status_error.h", '#include "proto/optshard/v1/common.pb.h"'),
        ]:
            with self.subTest(path=path, line=line):
                self.assertNotEqual(self._violations_of(path, line), [])

    def test_allowed_includes_are_not(self):
        for path, line in [
            ("server/shard/shard_service.cc", "#include <grpcpp/grpcpp.h>"),
            ("client/coordinator_client_rpc.cc", "#include <grpcpp/grpcpp.h>"),
            ("server/coordinator/coordinator_main.cc", "#include <grpcpp/grpcpp.h>"),
            ("client/sharded_optimizer.h", "#include <torch/optim.h>"),
            ("client/sharded_optimizer.h", '#include "client/rule_options.h"'),
            ("client/sharded_optimizer.h", '#include "common/step_info.h"'),
            ("client/owner/client_seams.h", '#include "server/shard/shard_owner.h"'),
            ("common/dataplane/gloo/gloo_plane.cc", "#include <gloo/context.h>"),
            ("server/update/simd_driver.cc", "#include <hwy/highway.h>"),
            ("client/sharded_optimizer.cc", '#include "server/shard/shard_owner.h"'),
            ("common/plan.cc", "// #include <grpcpp/grpcpp.h>"),
        ]:
            with self.subTest(path=path, line=line):
                self.assertEqual(self._violations_of(path, line), [])


if __name__ == "__main__":
    unittest.main()
