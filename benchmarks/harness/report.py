"""The entries of out/bench.json as text that a person can read: Markdown that also reads as it is."""


def _value(value):
    return "-" if value is None else "%.1f" % value


def _shown(entry):
    """The entry's unit, and what to multiply its figures by, for a person: times below a millisecond
    are shown in microseconds."""
    times = [c["ms"] for c in entry["contestants"] if c["role"] == "ours"]
    if entry["unit"] == "ms" and times and times[0] < 1:
        return "us", 1000
    return entry["unit"], 1


def _ratio(value):
    return "-" if value is None else "%.3f" % value


def table(header, rows):
    """Padded, so that it reads well on a terminal too. The first column is text, the others figures."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def line(cells):
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths))]
        return "| " + " | ".join(padded) + " |"

    rules = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [line(header), line(rules), *map(line, rows)]


def _against_the_limit(entry, unit, factor):
    if entry["ratio_to_limit"] is None:
        return ""
    return "\nours / limit = %s; the limit: %s, %s %s." % (
        _ratio(entry["ratio_to_limit"]),
        entry["limit"],
        _value(entry["limit_ms"] * factor),
        unit,
    )


def _headline(entry):
    if entry["ours_ms"] is None:
        return "**No ratio: ours is missing.**"
    unit, factor = _shown(entry)
    limit = _against_the_limit(entry, unit, factor)
    if not entry["has_peers"]:
        return "**ours = %s %s** (%d rounds); no peer took part.%s" % (
            _value(entry["ours_ms"] * factor), unit, entry["rounds"], limit)
    if entry["ratio"] is None:
        return "**No ratio: every peer is missing.**"
    spread = entry["spread"]["ratio"]
    return "**ours / %s peer = %s** (quartiles %s to %s, all %s to %s, %d rounds): %s %s against %s %s of %s." % (
        "fastest" if entry["unit"] == "ms" else "smallest",
        _ratio(entry["ratio"]),
        _ratio(spread["q1"]),
        _ratio(spread["q3"]),
        _ratio(spread["min"]),
        _ratio(spread["max"]),
        entry["rounds"],
        _value(entry["ours_ms"] * factor),
        unit,
        _value(entry["peer_ms"] * factor),
        unit,
        entry["peer"],
    ) + limit


def _contestant_row(figures, factor):
    spread = figures["spread_ms"]
    ratio = figures.get("ratio")
    return [
        figures["title"],
        figures["role"],
        _value(figures["ms"] * factor),
        _value(spread["min"] * factor),
        _value(spread["q1"] * factor),
        _value(spread["q3"] * factor),
        _value(spread["max"] * factor),
        _ratio(ratio["median"]) if ratio else "-",
    ]


def render(entries, machine, notes=()):
    """`notes` are sections of their own, as text."""
    lines = ["# Benchmark", "", machine, ""]
    for entry in entries:
        lines += ["## %s: %s" % (entry["name"], entry["title"]), "", _headline(entry), ""]
        unit, factor = _shown(entry)
        header = ["contestant", "role", "median " + unit, "min", "q1", "q3", "max", "ours / it"]
        lines += table(header, [_contestant_row(figures, factor) for figures in entry["contestants"]])
        if entry["problems"]:
            lines += ["", "Problems:", *["- " + problem for problem in entry["problems"]]]
        lines += [""]
    lines += [note for note in notes if note]
    return "\n".join(lines)
