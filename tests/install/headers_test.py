"""That each installed header compiles alone, and leads to no protobuf, gRPC or Gloo."""

import concurrent.futures
import os
import re
import unittest

from tests.install.installed import LIBTORCH, checked, files_below, install_to, run, scratch

_FOREIGN = re.compile(r"/(google/protobuf|grpcpp|grpc|gloo|spdlog|hwy)/|\.pb\.h$")


class Headers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        install_to(cls._scratch.name)
        cls.include = os.path.join(cls._scratch.name, "include")
        cls.headers = files_below(cls.include)

    def _compiler(self, header):
        """What compiles a file as a program would, with LibTorch's headers only for trainers."""
        command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I" + self.include]
        if header.startswith("optshard/client/") and "/control/" not in header:
            for folder in ("include", "include/torch/csrc/api/include"):
                command += ["-idirafter", os.path.join(LIBTORCH, folder)]
        return command

    def _compile_alone(self, header):
        # -H names what is included; the file is what a program has as its first line.
        return run(
            *self._compiler(header), "-fsyntax-only", "-H", "-x", "c++", "-",
            input='#include "%s"\n' % header,
        )

    def test_Each_CompilesAlone_WithoutForeignHeaders(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(self._compile_alone, self.headers))
        self.assertGreater(len(results), 20)
        for header, result in zip(self.headers, results):
            with self.subTest(header=header):
                self.assertEqual(result.returncode, 0, result.stdout)
                included = re.findall(r"^\.+ (\S+)$", result.stdout, re.MULTILINE)
                self.assertTrue(included)
                self.assertEqual([path for path in included if _FOREIGN.search(path)], [])

    def test_None_NamesForeignTypes(self):
        for header in self.headers:
            with open(os.path.join(self.include, header), encoding="utf-8") as file:
                code = re.sub(r"//.*", "", file.read())
            self.assertIsNone(re.search(r"\b(grpc|google|gloo|protobuf)\b", code), header)

    def test_Program_WithHeadersOfTheSameNames_GetsBoth(self):
        with scratch() as folder:
            os.mkdir(os.path.join(folder, "common"))
            with open(os.path.join(folder, "common/ids.h"), "w", encoding="utf-8") as own:
                own.write("struct OwnId {};\n")
            source = (
                '#include "common/ids.h"\n#include "client/control/optimizer_client_rpc.h"\n'
                "OwnId own; optshard::Rank rank = 0;\n"
            )
            checked(
                "g++", "-std=c++17", "-fsyntax-only", "-I" + folder, "-isystem", self.include,
                "-isystem", self.include + "/optshard", "-x", "c++", "-", input=source,
            )


if __name__ == "__main__":
    unittest.main()
