"""What `./run install --cuda` installs: trainers for GPUs, built where there is neither a GPU nor CUDA."""

import os
import re
import sys
import unittest

from tests.install.installed import LIBTORCH, checked, install_to, run, scratch

_PROJECT = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
find_package(optshard REQUIRED)
add_executable(gpu_trainer gpu_trainer.cc)
target_link_libraries(gpu_trainer optshard::client)
"""
_LOADS = """import ctypes, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
print("loaded")
"""


class ForGpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        cls.root = cls._scratch.name
        cls.prefix = os.path.join(cls.root, "prefix")
        install_to("--cuda", cls.prefix)
        os.mkdir(os.path.join(cls.root, "source"))
        root = os.path.dirname(os.path.realpath("WORKSPACE"))
        with open(os.path.join(root, "docs/gpu.md"), encoding="utf-8") as page:
            (trainer,) = re.findall(r"^```cpp\n(.*?)^```$", page.read(), re.MULTILINE | re.DOTALL)
        with open(os.path.join(cls.root, "source/gpu_trainer.cc"), "w", encoding="utf-8") as source:
            source.write(trainer)
        with open(os.path.join(cls.root, "source/CMakeLists.txt"), "w", encoding="utf-8") as project:
            project.write(_PROJECT)

    def _library(self):
        return os.path.join(self.prefix, "lib/liboptshard_client.so")

    def _libtorch(self, without=()):
        """A LibTorch that lies alone: no library that NVIDIA's wheels bring is found beside it."""
        folder = scratch()
        self.addCleanup(folder.cleanup)
        os.symlink(os.path.join(LIBTORCH, "include"), os.path.join(folder.name, "include"))
        os.mkdir(os.path.join(folder.name, "lib"))
        for library in os.listdir(os.path.join(LIBTORCH, "lib")):
            if library not in without:
                os.symlink(os.path.join(LIBTORCH, "lib", library), os.path.join(folder.name, "lib", library))
        return folder.name

    def _configure(self, build, libtorch):
        return run(
            "cmake", "-S", os.path.join(self.root, "source"), "-B", os.path.join(self.root, build),
            "-DCMAKE_PREFIX_PATH=" + self.prefix, "-Doptshard_LIBTORCH=" + libtorch,
        )

    def test_Library_HasKernels_AndLoadsWithoutCuda(self):
        with open(self._library(), "rb") as library:
            kernels = set(re.findall(rb"7kernels11PlainKernelI\w+?_\d+_([a-z_]+)_cc_", library.read()))
        self.assertGreaterEqual(kernels, {b"adam", b"lamb", b"lion", b"sgd"})
        libraries = [os.path.join(LIBTORCH, "lib", name) for name in ("libc10.so", "libtorch_cpu.so")]
        loaded = checked(sys.executable, "-c", _LOADS, *libraries, self._library())
        self.assertEqual(loaded, "loaded\n")

    def test_TrainerOfTheDocuments_LinksLibTorchForCuda(self):
        configured = self._configure("build", self._libtorch())
        self.assertEqual(configured.returncode, 0, configured.stdout)
        self.assertRegex(configured.stdout, r"optshard: LibTorch [\d.]+ for CUDA in ")
        checked("cmake", "--build", os.path.join(self.root, "build"), timeout=400)
        trainer = os.path.join(self.root, "build/gpu_trainer")
        needed = checked("readelf", "--dynamic", "--wide", trainer)
        for library in ("liboptshard_client.so", "libtorch_cuda.so", "libc10_cuda.so", "libtorch_cpu.so"):
            self.assertIn("[" + library, needed)

    def test_LibTorchForCpus_IsRefused(self):
        configured = self._configure("refused", self._libtorch(without=("libtorch_cuda.so",)))
        self.assertNotEqual(configured.returncode, 0)
        said = " ".join(configured.stdout.split())
        self.assertRegex(said, r"libtorch_cuda\.so does not exist\. Give the folder of a LibTorch for CUDA")

    def test_PkgConfig_HasLibTorchForCuda(self):
        flags = checked(
            "pkg-config", "--libs", "optshard",
            env=dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.prefix, "lib/pkgconfig")),
        )
        self.assertRegex(flags, r"-ltorch_cuda.* -ltorch_cpu")
