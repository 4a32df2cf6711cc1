"""Man pages and bash completion, made of what --help prints (common/cli/command_line.h).

Usage: help_page.py PROGRAM VERSION SHARE: writes those of a program below the folder SHARE.

A page of --help has what the program is for, a usage, sections of entries that are indented by two with
a text that is indented by six, examples, and notes.
"""

import os
import re
import subprocess
import sys


class HelpPage:
    """The parts of a page."""

    def __init__(self, text):
        self.introduction, self.usage, self.sections, self.examples, self.notes = [], "", [], [], []
        entries, term, into = None, None, self.introduction
        for line in text.splitlines():
            heading = re.match(r"([A-Z]\w*):$", line)
            if line.startswith("Usage: "):
                self.usage, into = line[len("Usage: "):], self.notes
            elif heading and heading.group(1) == "Examples":
                entries = self.examples
            elif heading:
                entries = []
                self.sections.append((heading.group(1), entries))
            elif line.startswith("      "):
                term[1].append(line.strip())
            elif line.startswith("  ") and entries is self.examples:
                entries.append(line.strip())
            elif line.startswith("  ") and entries is not None:
                term = (line.strip(), [])
                entries.append(term)
            elif line:
                into.append(line)
        if not (self.introduction and self.usage and self.sections):
            raise ValueError("no page of --help: %r" % text[:80])

    @property
    def program(self):
        return self.usage.split(" ", 1)[0]

    def options(self):
        """(--name, its values as --help has them or None) of each option; --no-name of flags, too."""
        for _, entries in self.sections:
            for term, _ in entries:
                match = re.match(r"--(\[no-\])?([\w-]+)(?:=(\S+))?", term)
                if match:
                    yield "--" + match.group(2), match.group(3)
                    if match.group(1):
                        yield "--no-" + match.group(2), None

    def commands(self):
        """The values of an argument COMMAND, which its text names before colons."""
        for _, entries in self.sections:
            for term, text in entries:
                if term == "COMMAND":
                    return re.findall(r"(?:^|\. )(\w+):", " ".join(text))
        return []


def _escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def man_page(page, version):
    """The text of a man page in section 1."""
    first, _, _ = " ".join(page.introduction).partition(". ")
    lines = [
        '.TH %s 1 "" "optshard %s" "optshard"' % (page.program.upper(), version),
        ".SH NAME",
        "%s \\- %s" % (_escaped(page.program), _escaped(first[0].lower() + first[1:].rstrip("."))),
        ".SH SYNOPSIS",
        _escaped(page.usage),
        ".SH DESCRIPTION",
        *map(_escaped, page.introduction),
        ".SH OPTIONS",
    ]
    for title, entries in page.sections:
        lines.append(".SS " + title)
        for term, text in entries:
            lines += [".TP", ".B " + _escaped(term), *map(_escaped, text)]
    lines += [".SH EXAMPLES", ".nf", *map(_escaped, page.examples), ".fi"]
    lines += [".SH NOTES", *map(_escaped, page.notes)]
    return "\n".join(lines) + "\n"


_COMPLETION = """# bash completion for {program}; made of its --help.
{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} option=""
  COMPREPLY=()
  # Bash takes "=" for a word of its own.
  if [[ $current == "=" ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 1]}}
    current=""
  elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == "=" ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  case $option in
{values}    "")
      mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$current")
      # The value comes right behind the "=".
      [[ ${{COMPREPLY[0]-}} != *= ]] || compopt -o nospace 2>/dev/null || true
{paths}      ;;
  esac
}}
complete -F {function} {program}
"""


def bash_completion(page):
    """A file of bash that completes the program's options and their values."""
    words, values = list(page.commands()), ""
    for name, value in page.options():
        words.append(name + ("=" if value else ""))
        if value and "|" in value:
            compgen = '-W "%s"' % value.replace("|", " ")
        elif value in ("DIR", "PATH", "TEXT"):
            compgen = "-f"
        else:
            continue
        values += '    %s) mapfile -t COMPREPLY < <(compgen %s -- "$current") ;;\n' % (name, compgen)
    paths = ""
    if page.commands():
        paths = """\
      [[ -z $current || $current == -* ]] ||
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
"""
    return _COMPLETION.format(
        program=page.program,
        function="_" + page.program.replace("-", "_"),
        values=values,
        words=" ".join(words),
        paths=paths,
    )


def pages_of(text, version):
    """The files made of a page of --help, by their paths in share/."""
    page = HelpPage(text)
    return {
        "man/man1/%s.1" % page.program: man_page(page, version),
        "bash-completion/completions/" + page.program: bash_completion(page),
    }


def main(program, version, share):
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    for path, content in pages_of(text, version).items():
        path = os.path.join(share, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: help_page.py PROGRAM VERSION SHARE")
    main(*sys.argv[1:])
