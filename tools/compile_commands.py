"""Turns `bazel aquery --output=jsonproto` of CppCompile actions into compile_commands.json.

Usage: compile_commands.py OUTPUT_BASE <aquery.json >compile_commands.json, in the workspace root.
"""

import json
import os
import sys

# Of GCC only: clangd and clang-tidy refuse them.
_GCC_ONLY = {
    "-fno-canonical-system-headers",
    "-fno-semantic-interposition",
    "-Wunused-but-set-parameter",
    "-Wno-free-nonheap-object",
}

# GCC ignores the annotations of absl/base/thread_annotations.h: clang-tidy and clangd check them.
_CLANG_ONLY = ["-Wthread-safety"]


def command(arguments, workspace, output_base):
    """One entry, or None for a source that is not in the workspace (generated, external)."""
    source = arguments[arguments.index("-c") + 1]
    if source.startswith(("bazel-out/", "external/")):
        return None
    # Tools run in the workspace, which has bazel-out but not external.
    absolute = [
        os.path.join(output_base, argument) if argument.startswith("external/") else argument
        for argument in arguments
        if argument not in _GCC_ONLY
    ]
    return {"directory": workspace, "file": source, "arguments": absolute + _CLANG_ONLY}


def main():
    graph = json.load(sys.stdin)
    entries = {}
    for action in graph.get("actions", []):
        entry = command(action["arguments"], os.getcwd(), sys.argv[1])
        if entry:
            entries.setdefault(entry["file"], entry)
    json.dump([entries[file] for file in sorted(entries)], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
