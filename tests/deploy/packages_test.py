"""The Debian packages and the units of systemd in them."""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_MAKE = os.path.join(_ROOT, "deploy/debian/make_packages.sh")
# What they have, in the order of the programs' paths.
_PROGRAMS = {"coordinator": ("optshard-checkpoint", "optshard-coordinator"),
             "run": ("optshard-run",),
             "server": ("optshard-server",)}
_VERSION = "1.2.3"
_PATIENCE_S = 120
_LARGEST_PACKAGE_BYTES = 8 << 20
_UNITS = ("optshard-coordinator@.service", "optshard-server@.service")
# Of 10, by systemd-analyze: 0 is what can do nothing.
_MOST_EXPOSED = 2.5


def _run(*command, **kwargs):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=_PATIENCE_S, **kwargs)


class Built(unittest.TestCase):
    """Packs once for all cases."""

    _folder = None

    @classmethod
    def setUpClass(cls):
        if Built._folder is not None:
            return
        Built._folder = tempfile.TemporaryDirectory()
        Built.out = Built._folder.name
        Built.unpacked = os.path.join(Built.out, "root")
        made = _run(_MAKE, Built.out, _VERSION, ".")
        if made.returncode != 0:
            raise AssertionError(made.stdout)
        for name in _PROGRAMS:
            subprocess.run(["dpkg-deb", "-x", Built.package(name), Built.unpacked], check=True)

    @classmethod
    def package(cls, name):
        return os.path.join(cls.out, "optshard-%s_%s_amd64.deb" % (name, _VERSION))


class Packages(Built):
    def field(self, name, field):
        return _run("dpkg-deb", "-f", self.package(name), field).stdout.strip()

    def files(self, name):
        listed = _run("dpkg-deb", "-c", self.package(name)).stdout
        return sorted(re.findall(r"(?m) \./(.*[^/\n])$", listed))

    def test_Files_AreProgramsWithTheirPagesUnitsAndDocuments(self):
        for name, programs in _PROGRAMS.items():
            package = "optshard-" + name
            expected = ["usr/share/doc/%s/copyright" % package]
            if name != "run":
                expected += ["usr/lib/systemd/system/%s@.service" % package,
                             "usr/lib/sysusers.d/%s.conf" % package,
                             "usr/share/doc/%s/examples/JOB.env" % package]
            for program in programs:
                expected += ["usr/bin/" + program,
                             "usr/share/bash-completion/completions/" + program,
                             "usr/share/man/man1/%s.1.gz" % program]
            self.assertEqual(self.files(name), sorted(expected))

    def test_ManPages_AreOfTheirPrograms(self):
        for programs in _PROGRAMS.values():
            for program in programs:
                path = os.path.join(self.unpacked, "usr/share/man/man1/%s.1.gz" % program)
                with gzip.open(path, "rt", encoding="utf-8") as page:
                    self.assertRegex(page.read(), r'^\.TH %s 1 "" "optshard 1\.2\.3"' % program.upper())

    def test_Dependencies_AreDebians_WithThoseOfThePlugin_AndNoLibTorch(self):
        for name in ("coordinator", "server"):
            depends = self.field(name, "Depends")
            self.assertIn("libgrpc++1.51", depends)
            self.assertNotIn("torch", depends)
            self.assertEqual(self.field(name, "Version"), _VERSION)
            self.assertLess(os.path.getsize(self.package(name)), _LARGEST_PACKAGE_BYTES)
        self.assertIn("libgloo0", self.field("server", "Depends"))
        self.assertNotIn("libgloo0", self.field("coordinator", "Depends"))
        for name in ("coordinator", "server"):
            self.assertIn("optshard-%s (= %s)" % (name, _VERSION), self.field("run", "Depends"))

    def test_Tarball_HasTheFilesOfAll(self):
        listed = _run("tar", "-tzf", os.path.join(
            self.out, "optshard-%s-debian12-amd64.tar.gz" % _VERSION)).stdout
        files = sorted(re.findall(r"(?m)^\./(.*[^/\n])$", listed))
        self.assertEqual(files, sorted(file for name in _PROGRAMS for file in self.files(name)))

    def test_Programs_Run(self):
        for name in ("coordinator", "server", "checkpoint", "run"):
            program = os.path.join(self.unpacked, "usr/bin/optshard-" + name)
            ended = _run(program, "--help")
            self.assertEqual(ended.returncode, 0, ended.stdout)
            self.assertIn("Usage: optshard-" + name, ended.stdout)

    def test_ProgramThatIsNotBuilt_IsAnErrorNamingIt(self):
        made = _run(_MAKE, self.out, _VERSION, "/nothing")
        self.assertEqual(made.returncode, 1)
        self.assertIn("'/nothing/server/coordinator/optshard-coordinator' is no file", made.stdout)


@unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
class Units(Built):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        system = os.path.join(cls.unpacked, "usr/lib/systemd/system")
        for target in ("basic", "multi-user", "network-online", "network", "shutdown", "sysinit"):
            shutil.copy("/usr/lib/systemd/system/%s.target" % target, system)

    def verify(self, unit):
        instance = unit.replace("@", "@job")
        return _run("systemd-analyze", "verify", "--root=" + self.unpacked, instance).stdout

    def test_OfSystemd_AreValid(self):
        for unit in _UNITS:
            with self.subTest(unit=unit):
                self.assertEqual(self.verify(unit), "")

    def test_WrongSetting_IsSeen(self):
        unit = os.path.join(self.unpacked, "usr/lib/systemd/system", _UNITS[1])
        with open(unit, encoding="utf-8") as file:
            text = file.read()
        self.addCleanup(self.write, unit, text)
        self.write(unit, text.replace("MemoryMax=80%", "MemoryMax=much"))
        self.assertIn("Invalid memory limit 'much'", self.verify(_UNITS[1]))
        self.write(unit, text.replace("/usr/bin/optshard-server", "/usr/bin/optshard-severe"))
        self.assertIn("optshard-severe", self.verify(_UNITS[1]))

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_OfSystemd_MayWriteWhereTheExampleHasCheckpoints(self):
        with open(os.path.join(_ROOT, "deploy/systemd/example.env"), encoding="utf-8") as file:
            [directory] = re.findall(r"(?m)^COORDINATOR_OPTIONS=.*--checkpoint-dir=(\S+)", file.read())
        for unit in _UNITS:
            with open(os.path.join(_ROOT, "deploy/systemd", unit), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("ProtectSystem=strict", text)
            writable = re.findall(r"(?m)^ReadWritePaths=-?(.*)$", text)
            writable += ["/var/lib/" + each for each in re.findall(r"(?m)^StateDirectory=(.*)$", text)]
            self.assertEqual(writable, ["/srv/optshard", "/var/lib/optshard/%i"])
            self.assertTrue(directory.startswith(writable[0] + "/"), directory)

    def test_OfSystemd_AreHardened(self):
        for unit in _UNITS:
            said = _run("systemd-analyze", "security", "--offline=true", "--root=" + self.unpacked,
                        unit.replace("@", "@job")).stdout
            exposure = float(re.search(r"exposure level for .*: ([\d.]+)", said).group(1))
            self.assertLess(exposure, _MOST_EXPOSED, unit)

    def test_OfSystemd_GiveFlagsThatThereAre_AndVariablesThatTheExampleHas(self):
        with open(os.path.join(_ROOT, "deploy/systemd/example.env"), encoding="utf-8") as file:
            example = file.read()
        for unit in _UNITS:
            with open(os.path.join(_ROOT, "deploy/systemd", unit), encoding="utf-8") as file:
                text = file.read()
            [line] = re.findall(r"(?m)^ExecStart=(.*)$", text)
            program = os.path.join(self.unpacked, line.split()[0].lstrip("/"))
            described = _run(program, "--help").stdout
            given = re.findall(r"--[\w-]+", line)
            prefix = "COORDINATOR" if "coordinator" in unit else "SERVER"
            given += re.findall(r"--[\w-]+", re.search(
                r"(?m)^%s_OPTIONS=(.*)$" % prefix, example).group(1))
            self.assertGreater(len(given), 3)
            for flag in given:
                self.assertRegex(described, r"(?m)^  %s=" % flag)
            for variable in re.findall(r"\$\{?([A-Z_]+)", line):
                self.assertRegex(example, r"(?m)^%s=" % variable)


if __name__ == "__main__":
    unittest.main()
