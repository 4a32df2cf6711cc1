"""That a project elsewhere builds with CMake or pkg-config against an installed prefix, and trains."""

import os
import re
import shutil
import subprocess
import time
import unittest

from tests.install.installed import LIBTORCH, checked, install_to, run, scratch
from tests.testing.master_port import free_master_port

_TIMEOUT_S = 120
# Whose functions must not be called from outside of our libraries.
_POISONED = ("libgrpc.so", "libgrpc++.so", "libgpr.so", "libprotobuf.so")


def two_ranks(program, **environment):
    """The (exit code, output) of two ranks of a trainer."""
    common = dict(
        os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_master_port())
    )
    ranks = [
        subprocess.Popen(
            [program],
            env=dict(common, RANK=str(rank), **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=_TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs)]


class Project(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        cls.root = cls._scratch.name
        cls.prefix = os.path.join(cls.root, "prefix")
        install_to(cls.prefix)
        source = os.path.join(cls.root, "source")
        os.mkdir(source)
        for file in (
            "tests/readme/readme_trainer.cc",
            "tests/install/own_protobuf.cc",
            "tests/install/report.proto",
            "tests/install/asks_coordinator.cc",
        ):
            shutil.copy(file, source)
        shutil.copy("tests/install/project.cmake", os.path.join(source, "CMakeLists.txt"))
        cls.build = os.path.join(cls.root, "build")
        cls.configured = checked(
            "cmake", "-S", source, "-B", cls.build, "-DCMAKE_PREFIX_PATH=" + cls.prefix,
            "-Doptshard_LIBTORCH=" + LIBTORCH,
        )
        checked("cmake", "--build", cls.build, "--parallel", "2", timeout=400)

    def _program(self, name):
        return os.path.join(self.build, name)

    def test_Configure_SaysWhichLibTorch(self):
        self.assertRegex(self.configured, r"optshard: LibTorch [\d.]+ in " + LIBTORCH)

    def test_Readme_TwoRanks_TrainAsTheTreeDoes(self):
        installed = two_ranks(self._program("readme_trainer"))
        tree = two_ranks(os.path.abspath("tests/readme/readme_trainer"))
        self.assertEqual(installed, tree)
        for code, output in installed:
            self.assertEqual(code, 0, output)
            self.assertEqual(len(re.findall(r"^step \d+ loss [\d.]+$", output, re.MULTILINE)), 4, output)

    def test_OwnProtobuf_BesideOurs_BothWork(self):
        linked = checked("readelf", "-dW", self._program("own_protobuf"))
        self.assertIn("[libprotobuf.so.32]", linked)
        ranks = two_ranks(self._program("own_protobuf"))
        for code, output in ranks:
            self.assertEqual(code, 0, output)
            self.assertRegex(output, r"^step 20 loss \S+ checksum [1-9]\d*$")
        self.assertEqual(ranks[0][1], ranks[1][1])

    def test_Readme_WhereEveryFunctionOfGrpcAndProtobufIsPoisoned_Trains(self):
        poison = self._poison()
        for code, output in two_ranks(self._program("readme_trainer"), LD_PRELOAD=poison):
            self.assertEqual(code, 0, output)
        # That it is poison: the trainer of the tree has Debian's gRPC.
        environment = dict(os.environ, RANK="0", WORLD_SIZE="1", LD_PRELOAD=poison)
        alone = subprocess.run(
            ["tests/readme/readme_trainer"], env=environment, timeout=_TIMEOUT_S, capture_output=True
        )
        self.assertLess(alone.returncode, 0)

    def _poison(self):
        """A library to preload that has all of their functions, each an illegal instruction."""
        names = set()
        for library in _POISONED:
            path = checked("gcc", "-print-file-name=" + library).strip()
            for line in checked("nm", "-D", "--defined-only", path).splitlines():
                _, kind, name = line.split()
                if kind in "TW" and re.match(r"(_ZN?K?\w*(4grpc|6google8protobuf)|grpc_|gpr_)", name):
                    names.add(name.split("@")[0])
        self.assertGreater(len(names), 5000)
        source = os.path.join(self.root, "poison.s")
        with open(source, "w", encoding="utf-8") as file:
            file.write('.section .note.GNU-stack,"",@progbits\n.text\n')
            for name in sorted(names):
                file.write('.globl "%s"\n.type "%s", @function\n"%s": ud2\n' % (name, name, name))
        library = os.path.join(self.root, "poison.so")
        checked("gcc", "-shared", "-nostdlib", "-o", library, source)
        return library

    def test_Control_AsksACoordinator_WithoutLibTorch(self):
        program = self._program("asks_coordinator")
        self.assertNotIn("torch", checked("ldd", program))
        port_file = os.path.join(self.root, "port")
        coordinator = subprocess.Popen(
            [
                os.path.join(self.prefix, "bin/optshard-coordinator"), "--world-size=1",
                "--listen=127.0.0.1:0", "--port-file=" + port_file,
            ]
        )
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not os.path.exists(port_file):
                self.assertIsNone(coordinator.poll())
                self.assertLess(time.monotonic(), deadline, "the coordinator wrote no port")
                time.sleep(0.01)
            with open(port_file, encoding="utf-8") as file:
                port = file.read().strip()
            answer = run(program, "127.0.0.1:" + port)
        finally:
            coordinator.terminate()
            coordinator.wait(_TIMEOUT_S)
        self.assertEqual(answer.returncode, 2, answer.stdout)
        self.assertIn("NOT_FOUND", answer.stdout)

    def test_PkgConfig_BuildsAProgram(self):
        source = os.path.join(self.root, "options.cc")
        with open(source, "w", encoding="utf-8") as file:
            file.write(
                '#include <cstdio>\n#include "client/sharded_optimizer_options.h"\nint main() {\n'
                "  const auto options = optshard::ShardedOptimizerOptions::FromEnvironment();\n"
                '  std::printf("%d of %d\\n", options->rank, options->world_size);\n}\n'
            )
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.prefix, "lib/pkgconfig"))
        flags = checked(
            "pkg-config", "--define-variable=libtorch=" + LIBTORCH, "--cflags", "--libs", "optshard",
            env=environment,
        ).split()
        program = os.path.join(self.root, "options")
        checked("g++", "-std=c++17", source, "-o", program, *flags)
        output = checked(program, env=dict(os.environ, RANK="1", WORLD_SIZE="4"), cwd="/")
        self.assertEqual(output, "1 of 4\n")


if __name__ == "__main__":
    unittest.main()
