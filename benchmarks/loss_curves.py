"""Losses of the small language model, with each format of the optimizer's state, one after the other.

Needs optshard-train-language (`./run build`). Figures go to OUT/losses.md, the curves to OUT/losses.svg.
"""

import argparse
import csv
import os
import subprocess
import sys

from harness import chart, report

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FORMATS = {
    "float32": [],
    "bfloat16 slots": ["--state-dtype=bfloat16"],
    "int8_dynamic slots": ["--state-dtype=int8_dynamic"],
    "int8_companded slots": ["--state-dtype=int8_companded"],
    "bfloat16, float32 masters": ["--dtype=bfloat16", "--master-weights=32"],
    "bfloat16, 24 bits, int8_companded": [
        "--dtype=bfloat16",
        "--master-weights=24",
        "--state-dtype=int8_companded",
    ],
}


def _losses(program, arguments, file):
    """{step: loss} of a run."""
    subprocess.run([program, "--losses=" + file, *arguments], check=True, stdout=subprocess.DEVNULL)
    with open(file, encoding="utf-8", newline="") as text:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(text)}


def _rows(curves, seeds):
    rows = []
    for name in _FORMATS:
        ends = [curves[name, seed][max(curves[name, seed])] for seed in seeds]
        rows.append([name, *("%.4f" % end for end in ends), "%.4f" % (sum(ends) / len(ends))])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rule", default="adamw")
    parser.add_argument("--seeds", default="1", help="with commas between; the first one's are drawn")
    parser.add_argument("--program", default=os.path.join(_ROOT, "bin", "optshard-train-language"))
    parser.add_argument("--out", default=os.path.join(_ROOT, "out"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    seeds = options.seeds.split(",")
    file = os.path.join(options.out, "losses.csv")
    curves = {}
    for seed in seeds:
        for name, formats in _FORMATS.items():
            print("%s, seed %s ..." % (name, seed), file=sys.stderr)
            arguments = ["--steps=%d" % options.steps, "--rule=" + options.rule, "--seed=" + seed]
            arguments.append("--report-every=%d" % max(1, options.steps // 20))
            curves[name, seed] = _losses(options.program, arguments + formats, file)
    os.remove(file)
    title = "%s, %d steps" % (options.rule, options.steps)
    drawn = [(name, curves[name, seeds[0]]) for name in _FORMATS]
    with open(os.path.join(options.out, "losses.svg"), "w", encoding="utf-8") as svg:
        svg.write(chart.line_chart(title, "step", "held-out loss, nats a byte", drawn))
    header = ["loss after the last step", *("seed " + seed for seed in seeds), "mean"]
    text = "\n".join(report.table(header, _rows(curves, seeds)))
    with open(os.path.join(options.out, "losses.md"), "w", encoding="utf-8") as table:
        table.write("## %s\n\n%s\n" % (title, text))
    print(text)


if __name__ == "__main__":
    main()
