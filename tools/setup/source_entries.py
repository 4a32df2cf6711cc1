"""Writes apt source entries ("deb-src") for the Debian archives that this machine already uses.

Usage: source_entries.py DIRECTORY. Entries of other vendors are left out: many have no sources.
"""

import glob
import pathlib
import re
import sys

APT = pathlib.Path("/etc/apt")


def codename():
    text = pathlib.Path("/etc/os-release").read_text()
    return re.search(r"^VERSION_CODENAME=(\S+)", text, re.MULTILINE).group(1)


def is_debian_suite(suite, name):
    return re.fullmatch(re.escape(name) + r"([-/].*)?", suite) is not None


def from_list(text, name):
    """One-line entries: deb [options] uri suite component..."""
    entries = []
    for line in text.splitlines():
        match = re.match(r"deb(?:-src)?\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if match and is_debian_suite(match.group(3), name):
            entry = "deb-src %s%s %s %s" % (match.group(1) or "", *match.groups()[1:])
            if entry not in entries:
                entries.append(entry)
    return "".join(entry + "\n" for entry in entries)


def from_sources(text, name):
    """deb822 stanzas: fields in lines, stanzas apart by empty lines."""
    stanzas = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields = dict(line.split(":", 1) for line in lines if re.match(r"[A-Za-z-]+:", line))
        suites = fields.get("Suites", "").split()
        if suites and all(is_debian_suite(suite, name) for suite in suites):
            lines = ["Types: deb-src" if line.startswith("Types:") else line for line in lines]
            stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


def main(directory):
    name = codename()
    lists = [APT / "sources.list", *map(pathlib.Path, glob.glob(str(APT / "sources.list.d/*.list")))]
    sources = map(pathlib.Path, glob.glob(str(APT / "sources.list.d/*.sources")))
    texts = {
        "optshard.list": "".join(from_list(p.read_text(), name) for p in lists if p.exists()),
        "optshard.sources": "\n".join(from_sources(p.read_text(), name) for p in sources),
    }
    if not any(texts.values()):
        sys.exit("no entry for %s in %s: cannot fetch source packages" % (name, APT))
    for file, text in texts.items():
        if text:
            (pathlib.Path(directory) / file).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
