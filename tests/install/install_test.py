"""./run install: what it writes where, and what it says where it cannot."""

import os
import re
import unittest

from tests.install.installed import INSTALL, checked, files_below, install_to, run, scratch

_PROGRAMS = ["optshard-checkpoint", "optshard-coordinator", "optshard-run", "optshard-server"]


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._scratch = scratch()
        cls.addClassCleanup(cls._scratch.cleanup)
        cls.prefix = os.path.join(cls._scratch.name, "prefix")
        cls.output = install_to(cls.prefix)
        cls.files = files_below(cls.prefix)

    def _read(self, path):
        with open(os.path.join(self.prefix, path), encoding="utf-8") as file:
            return file.read()

    def test_Files_AreThoseOfUsers(self):
        programs = [path[len("bin/"):] for path in self.files if path.startswith("bin/")]
        self.assertEqual(programs, _PROGRAMS)
        for path in [
            "lib/liboptshard_client.so",
            "lib/liboptshard_control.so",
            "lib/cmake/optshard/optshardConfig.cmake",
            "lib/cmake/optshard/optshardConfigVersion.cmake",
            "lib/cmake/optshard/optshardLibTorch.cmake",
            "lib/pkgconfig/optshard.pc",
            "lib/pkgconfig/optshard-control.pc",
            "include/optshard/client/sharded_optimizer.h",
            "include/optshard/client/control/optimizer_client_rpc.h",
            "share/optshard/proto/optshard/v1/coordinator.proto",
            "share/man/man1/optshard-server.1",
            "share/bash-completion/completions/optshard-checkpoint",
            "share/doc/optshard/LICENSE",
            "share/doc/optshard/LICENSE.grpc",
            "share/doc/optshard/LICENSE.protobuf",
        ]:
            self.assertIn(path, self.files)
        for private in ("client/owner/", "client/replica/", ".cc", ".new."):
            self.assertEqual([path for path in self.files if private in path], [])
        self.assertRegex(self.output, r"^%d files, [\d.]+ MB in %s$" % (len(self.files), self.prefix))

    def test_Templates_AreFilledIn(self):
        for path in self.files:
            if path.endswith((".cmake", ".pc")):
                self.assertIsNone(re.search(r"@[A-Z_]+@", self._read(path)), path)

    def test_Files_HaveNoPathOfTheBuild(self):
        # Of the checkout, of Bazel's folders, and of what the linker was told.
        root = os.path.dirname(os.path.realpath("WORKSPACE"))
        for path in self.files:
            with open(os.path.join(self.prefix, path), "rb") as file:
                content = file.read()
            for trace in (root, "/.cache/bazel", ".venv", self.prefix):
                self.assertFalse(trace.encode() in content, "%s has %s" % (path, trace))

    def test_Prefix_MovedElsewhere_ProgramsRunFromAnyFolder(self):
        with scratch() as folder:
            moved = os.path.join(folder, "elsewhere")
            os.rename(self.prefix, moved)
            try:
                for program in _PROGRAMS:
                    help_text = checked(os.path.join(moved, "bin", program), "--help", cwd="/")
                    self.assertIn(program, help_text)
                # It starts the coordinator and the server that are beside it.
                launched = checked(os.path.join(moved, "bin/optshard-run"), "-n", "2", "--",
                                   "sh", "-c", "echo rank $RANK at $OPTSHARD_COORDINATOR", cwd="/")
                for rank in range(2):
                    self.assertRegex(launched, r"rank %d at 127\.0\.0\.1:\d+" % rank)
            finally:
                os.rename(moved, self.prefix)

    def test_Again_ReplacesFiles_RunningOnesKeepTheirs(self):
        program = os.path.join(self.prefix, "bin/optshard-coordinator")
        with open(program, "rb") as running:
            before = os.fstat(running.fileno())
            install_to(self.prefix)
            # Another file under the name; that of the running program is whole.
            self.assertNotEqual(os.stat(program).st_ino, before.st_ino)
            self.assertEqual(os.fstat(running.fileno()).st_size, before.st_size)
        self.assertEqual(files_below(self.prefix), self.files)

    def test_Destdir_StandsBeforeThePrefix(self):
        with scratch() as folder:
            install_to("/opt/optshard", DESTDIR=folder)
            self.assertEqual(files_below(folder), ["opt/optshard/" + path for path in self.files])


class Refused(unittest.TestCase):
    def _refusal(self, *command, **options):
        result = run(*command, **options)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, r"\A\./run install: .*\n\Z")
        return result.stdout

    def test_Prefix_Relative_IsRefused(self):
        self.assertIn("PREFIX is 'usr', and must begin with a slash", self._refusal(*INSTALL, "usr"))

    def test_Prefix_BelowAFile_IsRefused(self):
        with scratch() as folder:
            file = os.path.join(folder, "file")
            with open(file, "w", encoding="utf-8"):
                pass
            text = self._refusal(*INSTALL, file + "/optshard")
            self.assertIn("cannot be made: %s is not a folder" % file, text)

    def test_Prefix_NotWritable_IsRefusedBeforeAnythingIsBuilt(self):
        command = [*INSTALL, "--check"]
        if os.geteuid() == 0:
            # Root may write everywhere, but not without this capability.
            command = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override", *command]
        with scratch() as folder:
            prefix = os.path.join(folder, "prefix")
            os.mkdir(prefix)
            os.mkdir(os.path.join(prefix, "lib"))
            checked(*command, prefix)
            for closed in (os.path.join(prefix, "lib"), prefix):
                os.chmod(closed, 0o555)
                text = self._refusal(*command, prefix)
                self.assertIn("cannot write to %s: install as root, or give a PREFIX" % closed, text)
                os.chmod(closed, 0o755)

    def test_Programs_NotBuilt_AreNamed(self):
        with scratch() as folder:
            text = self._refusal(*INSTALL, "--built=" + folder, folder + "/prefix")
            self.assertIn("optshard-checkpoint does not exist", text)


if __name__ == "__main__":
    unittest.main()
