"""That every document is found from docs/README.md, and that links between documents lead somewhere."""

import glob
import os
import re
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)|\]\(#([\w-]+)\)")


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _documents():
    found = ["README.md", "CONTRIBUTING.md"]
    return found + glob.glob("docs/**/*.md", root_dir=_ROOT, recursive=True)


def _anchors(text):
    """As Git forges make them of headings."""
    titles = re.findall(r"(?m)^#+ +(.*)$", text)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(path, text):
    broken = []
    for target, anchor, own in _LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(os.path.join(_ROOT, file)):
            broken.append(target)
        elif (anchor or own) and (anchor or own) not in _anchors(_read(file)):
            broken.append("%s#%s" % (target, anchor or own))
    return broken


class Links(unittest.TestCase):
    def test_Every_LeadsToAFileAndAHeading(self):
        for path in _documents():
            with self.subTest(document=path):
                self.assertEqual(broken_links(path, _read(path)), [])

    def test_Broken_AreFound(self):
        text = "[a](nowhere.md) [b](errors.md#no-such-heading) [d](errors.md#joining)"
        self.assertEqual(
            broken_links("docs/x.md", "# There\n" + text + " [e](../README.md)")[:2],
            ["nowhere.md", "errors.md#no-such-heading"],
        )


class Index(unittest.TestCase):
    def test_Documents_AreAllInIt(self):
        index = _read("docs/README.md")
        documents = glob.glob("docs/*.md", root_dir=_ROOT) + glob.glob("docs/deploy/*.md", root_dir=_ROOT)
        for path in documents + ["docs/decisions/README.md"]:
            if path != "docs/README.md":
                self.assertIn("(%s)" % os.path.relpath(path, "docs"), index)


if __name__ == "__main__":
    unittest.main()
