"""The command lines that stand in documents."""

import re

# What a line must begin with to be a command of this project, after variables such as RANK=0.
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S* +)*(bin/[\w-]+|\./run|\.ci/run|bazel|torchrun)(?= |$)")
_FENCE = re.compile(r"^ *(```|~~~)(\w*)")
_SPAN = re.compile(r"`([^`\n]+)`")
_SHELL = ("", "sh", "bash", "shell", "console")


def blocks(text):
    """Fenced shell blocks and indented blocks of a Markdown text, each as a list of lines."""
    found, lines, fence, after_blank = [], None, None, True
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark:
            if fence is None:
                fence = mark.group(2)
                lines = []
                if fence in _SHELL:
                    found.append(lines)
            else:
                fence, lines = None, None
        elif fence is not None:
            lines.append(line)
        elif line.startswith("    ") and (lines is not None or after_blank):
            if lines is None:
                lines = []
                found.append(lines)
            lines.append(line[4:])
        elif line.strip():
            lines = None
        after_blank = not line.strip()
    return found


def _whole_lines(lines):
    """Joins lines that end with a backslash; leaves prompts and comments out."""
    joined = ""
    for line in lines:
        line = line.strip()
        if line.endswith("\\"):
            joined += line[:-1].rstrip() + " "
            continue
        yield (joined + line).lstrip("$ ")
        joined = ""


def _command(line):
    """The command of a line without what stands beside it, or None."""
    if not _COMMAND.match(line):
        return None
    # Two spaces or more begin a remark; so does "#". "&" is the shell's.
    line = re.split(r" {2,}|\s+#", line)[0]
    return re.sub(r"\s*&$", "", line)


def command_lines(text):
    """Every command line of a Markdown text, in blocks and as `code`."""
    commands = []
    for block in blocks(text):
        commands += [_command(line) for line in _whole_lines(block)]
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            commands += [_command(span) for span in _SPAN.findall(line)]
    return [command for command in commands if command]
