"""That the installed libraries show what the installed headers declare, and nothing else.

LibTorch has protobuf and Gloo of its own inside, and programs may have any gRPC and protobuf: what is
in our libraries must neither take the place of theirs nor be taken by them.
"""

import os
import re
import unittest

from tests.install.installed import checked, files_below, install_to, scratch

# System libraries that are loaded with ours. gRPC, protobuf and Gloo are not among them.
_NEEDED = {
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libcares.so.2",
    "libcrypto.so.3",
    "libfmt.so.9",
    "libgcc_s.so.1",
    "libhwy.so.1",
    "libm.so.6",
    "libre2.so.9",
    "libspdlog.so.1.10",
    "libssl.so.3",
    "libstdc++.so.6",
    "libxxhash.so.0",
    "libz.so.1",
}
_LIBTORCH = {"libc10.so", "libtorch_cpu.so"}

# A function that is declared at the left margin and not defined there.
_DECLARED = re.compile(
    r"^(?!inline|constexpr|template|using|static|struct|class|enum)(?=\w)[\w:<>&*, ]*?\b(\w+)\([^{}]*?\);",
    re.MULTILINE,
)


def declared_functions(header):
    text = re.sub(r"//.*", "", header)
    return set(_DECLARED.findall(text))


class Symbols(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        install_to(cls._scratch.name)

    def _library(self, name):
        return os.path.join(self._scratch.name, "lib", "liboptshard_%s.so" % name)

    def _shown(self, name):
        lines = checked("nm", "-DC", "--extern-only", "--defined-only", self._library(name)).splitlines()
        return [line.split(" ", 2)[2] for line in lines]

    def _headers(self):
        root = os.path.join(self._scratch.name, "include/optshard")
        for path in files_below(root):
            with open(os.path.join(root, path), encoding="utf-8") as header:
                yield path, header.read()

    def test_Shown_IsOptshardsAndNotItsInside(self):
        everything = "".join(text for _, text in self._headers())
        for library in ("client", "control"):
            shown = self._shown(library)
            self.assertGreater(len(shown), 20)
            for symbol in shown:
                match = re.match(
                    r"(?:(?:vtable|typeinfo|typeinfo name) for )?optshard::(?:errors::)?(\w+)", symbol
                )
                self.assertTrue(match, "lib%s shows %s" % (library, symbol))
                # Of overloads and friends in headers that are not installed, only the name is right.
                self.assertRegex(everything, r"\b%s\b" % match.group(1), symbol)
                self.assertNotRegex(symbol, r"::(Impl|Prepared)::")

    def test_Declared_IsShown(self):
        functions = 0
        for path, text in self._headers():
            # Without LibTorch, the library has what headers without LibTorch declare.
            control = path.startswith(("client/control/", "common/", "server/"))
            for library in ("client", "control") if control else ("client",):
                shown = "\n".join(self._shown(library))
                for function in declared_functions(text):
                    functions += 1
                    wanted = r"(?m)^optshard::(errors::)?%s(\[abi:cxx11\])?\(" % function
                    self.assertTrue(
                        re.search(wanted, shown),
                        "%s declares %s, which liboptshard_%s.so does not show: add it to"
                        " install/exports.lds" % (path, function, library),
                    )
        self.assertGreater(functions, 50)

    def test_DeclaredFunctions_AreFound(self):
        text = (
            "absl::Status Save(const A& a,\n    B b);  // f(x);\ninline int One();\n"
            "std::vector<Rank> RanksOf(const S& s);\nbool operator==(A, B);\nclass X {\n  int Y();\n};\n"
        )
        self.assertEqual(declared_functions(text), {"Save", "RanksOf"})

    def test_Classes_OfUsers_AreShown(self):
        for library, name in [
            ("client", "ShardedOptimizer::step(std::function<at::Tensor ()>)"),
            ("client", "ShardedOptimizer::~ShardedOptimizer()"),
            ("client", "ShardedOptimizerOptions::FromEnvironment()"),
            ("client", "RuleOptions::RuleOptions(torch::optim::AdamOptions const&)"),
            ("client", "StatusError::StatusError(absl::debian3::Status)"),
            ("client", "CheckpointDirectory::newest[abi:cxx11]() const"),
            ("control", "OptimizerClient::Connect(optshard::OptimizerClient::Options const&)"),
            ("control", "CheckpointCall::Start(optshard::CheckpointCall::Request const&)"),
        ]:
            self.assertIn("optshard::" + name, self._shown(library))

    def test_Libraries_NeedAbseilAndPlainSystemLibraries(self):
        for library, more, run_path in [("client", _LIBTORCH, ["$ORIGIN"]), ("control", set(), [])]:
            dynamic = checked("readelf", "-dW", self._library(library))
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
            others = {name for name in needed if not re.match(r"libabsl_\w+\.so\.20220623$", name)}
            self.assertEqual(others - _NEEDED - more, set())
            self.assertLessEqual(more, others)
            self.assertEqual(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic), run_path)
            soname = re.search(r"\(SONAME\).*\[(.*)\]", dynamic).group(1)
            self.assertEqual(os.readlink(self._library(library)), soname)


if __name__ == "__main__":
    unittest.main()
