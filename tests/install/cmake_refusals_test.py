"""What find_package(optshard) says where LibTorch, Abseil or a component is not what it needs."""

import os
import unittest

from tests.install.installed import LIBTORCH, install_to, run, scratch

_VERSION_H = """#define TORCH_VERSION_MAJOR %d
#define TORCH_VERSION_MINOR %d
#define TORCH_VERSION_PATCH %d
"""


class Configure(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        cls.prefix = os.path.join(cls._scratch.name, "prefix")
        install_to(cls.prefix)

    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.environment = {
            name: value for name, value in os.environ.items() if name != "optshard_LIBTORCH"
        }
        # CMake need not try the compiler, which takes most of the time of a configuration.
        self._write(
            "source/CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.18)\nset(CMAKE_CXX_COMPILER_WORKS TRUE)\n"
            "project(user CXX)\n"
            "find_package(optshard ${WANTED})\n"
            "if(TARGET optshard::client)\n  message(STATUS \"has client\")\nendif()\n"
            "if(TARGET optshard::control)\n  message(STATUS \"has control\")\nendif()\n",
        )

    def _write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _configure(self, *options, wanted="REQUIRED"):
        return run(
            "cmake", "-S", self.root + "/source", "-B", self.root + "/build",
            "-Doptshard_DIR=%s/lib/cmake/optshard" % self.prefix, "-DWANTED=" + wanted, *options,
            env=self.environment,
        )

    def _refusal(self, *options, **keywords):
        result = self._configure(*options, **keywords)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertIn("CMake Error", result.stdout)
        return " ".join(result.stdout.split())

    def _libtorch(self, version, libraries=("c10", "torch_cpu"), abi="NSt7__cxx1112basic_stringIcE"):
        """A folder that looks like a LibTorch."""
        self._write("libtorch/include/torch/headeronly/version.h", _VERSION_H % version)
        for name in libraries:
            self._write("libtorch/lib/lib%s.so" % name, "_ZN3c105ErrorC1E%s\n" % abi)
        return self.root + "/libtorch"

    def test_LibTorch_OfAnotherVersion_IsRefused(self):
        folder = self._libtorch((2, 10, 1))
        self.assertIn(
            "LibTorch 2.10.1 is in %s, but optshard was built with 2.11.0" % folder,
            self._refusal("-Doptshard_LIBTORCH=" + folder),
        )

    def test_LibTorch_OfTheOldAbi_IsRefused(self):
        folder = self._libtorch((2, 11, 0), abi="Ss")
        self.assertIn(
            "LibTorch in %s has the old C++ ABI" % folder,
            self._refusal("-Doptshard_LIBTORCH=" + folder),
        )

    def test_LibTorch_WithoutALibrary_IsRefused(self):
        folder = self._libtorch((2, 11, 0), libraries=("torch_cpu",))
        self.assertIn(
            "%s/lib/libc10.so does not exist" % folder,
            self._refusal("-Doptshard_LIBTORCH=" + folder),
        )

    def test_LibTorch_Nowhere_SaysWhereItIsLookedFor(self):
        # A python3 without torch comes first.
        self._write("bin/python3", "#!/bin/sh\nexit 1\n")
        os.chmod(self.root + "/bin/python3", 0o755)
        self.environment["PATH"] = self.root + "/bin:" + self.environment["PATH"]
        text = self._refusal()
        for way in ("-Doptshard_LIBTORCH=FOLDER", "CMAKE_PREFIX_PATH", "torch==2.11.0"):
            self.assertIn(way, text)
        self.assertIn(
            "optshard_LIBTORCH is /nowhere, and /nowhere/lib/libtorch_cpu.so does not exist",
            self._refusal("-Doptshard_LIBTORCH=/nowhere"),
        )

    def test_LibTorch_NotRequired_IsNotFoundQuietly(self):
        result = self._configure("-Doptshard_LIBTORCH=/nowhere", wanted="QUIET")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotIn("has client", result.stdout)

    def test_LibTorch_IsFoundInEachOfTheWays(self):
        self._write("bin/python3", '#!/bin/sh\necho "%s"\n' % LIBTORCH)
        os.chmod(self.root + "/bin/python3", 0o755)
        python = dict(self.environment, PATH=self.root + "/bin:" + self.environment["PATH"])
        for options, environment in [
            (["-Doptshard_LIBTORCH=" + LIBTORCH], self.environment),
            ([], dict(self.environment, optshard_LIBTORCH=LIBTORCH)),
            (["-DCMAKE_PREFIX_PATH=" + LIBTORCH], self.environment),
            # torch.utils.cmake_prefix_path
            (["-DCMAKE_PREFIX_PATH=/nowhere;%s/share/cmake" % LIBTORCH], self.environment),
            ([], python),
        ]:
            with self.subTest(options=options):
                result = run(
                    "cmake", "-S", self.root + "/source", "-B", self.root + "/fresh", "--fresh",
                    "-Doptshard_DIR=%s/lib/cmake/optshard" % self.prefix, "-DWANTED=REQUIRED", *options,
                    env=environment,
                )
                self.assertEqual(result.returncode, 0, result.stdout)
                self.assertIn("has client", result.stdout)
                self.assertIn("optshard: LibTorch 2.11.0 in %s\n" % LIBTORCH, result.stdout)

    def test_LibTorchsHeaders_AreLinkedWithoutItsOldProtobuf(self):
        result = self._configure("-Doptshard_LIBTORCH=" + LIBTORCH)
        self.assertEqual(result.returncode, 0, result.stdout)
        names = os.listdir(self.root + "/build/optshard_libtorch/include")
        self.assertLessEqual({"ATen", "c10", "torch"}, set(names))
        self.assertEqual({"google", "fmt", "pybind11"} & set(names), set())

    def test_Control_WithoutLibTorch_IsFound(self):
        result = self._configure("-Doptshard_LIBTORCH=/nowhere", wanted="REQUIRED;COMPONENTS;control")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("has control", result.stdout)
        self.assertNotIn("has client", result.stdout)

    def test_Component_Unknown_IsRefused(self):
        text = self._refusal(wanted="REQUIRED;COMPONENTS;server")
        self.assertIn("There is no component 'server' of optshard", text)

    def test_Version_Another_IsRefused(self):
        self.assertIn("optshardConfig.cmake, version: 0.1.0", self._refusal(wanted="99.0;REQUIRED"))

    def test_Abseil_OfAnotherVersion_IsRefused(self):
        self._write("absl/abslConfig.cmake", "")
        self._write(
            "absl/abslConfigVersion.cmake",
            'set(PACKAGE_VERSION "20240116")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n',
        )
        text = self._refusal("-Dabsl_DIR=%s/absl" % self.root)
        self.assertIn(
            "Abseil 20240116 was found in %s/absl, but optshard was built with 20220623" % self.root, text
        )


if __name__ == "__main__":
    unittest.main()
