"""Man pages and completion of a page of --help."""

import os
import subprocess
import tempfile
import unittest

from install.help_page import HelpPage, bash_completion, man_page

_HELP = """\
Keeps things. It keeps
.them all.

Usage: optshard-keep COMMAND DIR [OPTION...]

Arguments:
  COMMAND
      list: which there are. prune: removes
      old ones
  DIR
      the directory

Network:
  --listen=HOST:PORT  (default: 127.0.0.1:0)
      address to listen at
  --plane=auto|shm|gloo  (default: auto)
      how they travel
  --port-file=PATH  (default: none)
      a file

End:
  --[no-]dry-run  (default: off)
      only say it

Examples:
  optshard-keep list /things

A value may follow after a space.
"""


def complete(completion, *words):
    """What bash offers for the last of the words."""
    with tempfile.NamedTemporaryFile("w", suffix=".bash") as file:
        file.write(completion)
        file.flush()
        script = (
            'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _optshard_keep;'
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return subprocess.run(
            ["bash", "--norc", "-euc", script, "bash", file.name, "optshard-keep", *words],
            stdout=subprocess.PIPE, text=True, check=True, timeout=10,
        ).stdout.split()


class Page(unittest.TestCase):
    def test_Parts_AreThoseOfTheText(self):
        page = HelpPage(_HELP)
        self.assertEqual(page.program, "optshard-keep")
        self.assertEqual([title for title, _ in page.sections], ["Arguments", "Network", "End"])
        self.assertEqual(page.commands(), ["list", "prune"])
        self.assertEqual(
            list(page.options()),
            [
                ("--listen", "HOST:PORT"),
                ("--plane", "auto|shm|gloo"),
                ("--port-file", "PATH"),
                ("--dry-run", None),
                ("--no-dry-run", None),
            ],
        )
        self.assertEqual(page.notes, ["A value may follow after a space."])

    def test_Text_OfSomethingElse_IsRefused(self):
        with self.assertRaises(ValueError):
            HelpPage("no such option: --help\n")

    def test_ManPage_HasItAll_Escaped(self):
        text = man_page(HelpPage(_HELP), "1.2.3")
        self.assertIn('.TH OPTSHARD-KEEP 1 "" "optshard 1.2.3" "optshard"\n', text)
        self.assertIn(".SH NAME\noptshard\\-keep \\- keeps things\n", text)
        self.assertIn("\n\\&.them all.\n", text)  # else a request of roff
        self.assertIn(".SS Network\n.TP\n.B \\-\\-listen=HOST:PORT  (default: 127.0.0.1:0)\n", text)
        self.assertIn(".SH EXAMPLES\n.nf\noptshard\\-keep list /things\n.fi\n", text)

    def test_Completion_OffersWhatFits(self):
        completion = bash_completion(HelpPage(_HELP))
        for words, offered in [
            (["--p"], ["--plane=", "--port-file="]),
            (["--dry"], ["--dry-run"]),
            (["--no"], ["--no-dry-run"]),
            (["l"], ["list"]),
            (["--plane", "="], ["auto", "shm", "gloo"]),
            (["--plane", "=", "s"], ["shm"]),
            (["--listen", "=", "1"], []),
            (["list", "/et"], ["/etc"]),
        ]:
            with self.subTest(words=words):
                self.assertEqual(complete(completion, *words), offered)

    def test_Completion_OfAPath_OffersFiles(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "port"), "w", encoding="utf-8"):
                pass
            offered = complete(bash_completion(HelpPage(_HELP)), "--port-file", "=", folder + "/p")
            self.assertEqual(offered, [folder + "/port"])


if __name__ == "__main__":
    unittest.main()
