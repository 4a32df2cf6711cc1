"""That docs/rules.md is what the rules' declarations say."""

import os
import subprocess
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


class RulesPage(unittest.TestCase):
    maxDiff = None

    def test_Page_IsMadeFromTheDeclarations(self):
        made = subprocess.run(
            ["server/update/rules_page"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        with open(os.path.join(_ROOT, "docs/rules.md"), encoding="utf-8") as page:
            self.assertEqual(
                page.read(), made, "bazel run //server/update:rules_page > docs/rules.md"
            )


if __name__ == "__main__":
    unittest.main()
