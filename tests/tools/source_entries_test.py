"""Which of the machine's apt entries get a source entry."""

import unittest

from tools.setup import source_entries


class SourceEntries(unittest.TestCase):
    def test_one_line_entry_becomes_a_source_entry(self):
        self.assertEqual(
            source_entries.from_list("deb http://mirror.example/debian bookworm main\n", "bookworm"),
            "deb-src http://mirror.example/debian bookworm main\n",
        )

    def test_options_are_kept(self):
        self.assertEqual(
            source_entries.from_list(
                "deb [signed-by=/k.gpg] http://mirror.example/d bookworm-security main contrib",
                "bookworm",
            ),
            "deb-src [signed-by=/k.gpg] http://mirror.example/d bookworm-security main contrib\n",
        )

    def test_an_entry_that_is_there_already_is_not_doubled(self):
        text = "deb http://m.example/d bookworm main\ndeb-src http://m.example/d bookworm main\n"
        self.assertEqual(
            source_entries.from_list(text, "bookworm"),
            "deb-src http://m.example/d bookworm main\n",
        )

    def test_comments_and_other_vendors_are_left_out(self):
        text = "# deb http://m.example/d bookworm main\ndeb http://v.example/apt cloud-bookworm main\n"
        self.assertEqual(source_entries.from_list(text, "bookworm"), "")

    def test_stanza_becomes_a_source_stanza(self):
        text = "Types: deb\n# why\nURIs: http://m.example/d\nSuites: bookworm bookworm-updates\n"
        self.assertEqual(
            source_entries.from_sources(text, "bookworm"),
            "Types: deb-src\nURIs: http://m.example/d\nSuites: bookworm bookworm-updates\n",
        )

    def test_stanza_of_another_vendor_is_left_out(self):
        text = "Types: deb\nURIs: https://v.example\nSuites: nodistro\nComponents: main\n"
        self.assertEqual(source_entries.from_sources(text, "bookworm"), "")


if __name__ == "__main__":
    unittest.main()
