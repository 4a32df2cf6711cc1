"""The machine code and the PTX of the kernels between formulas, for every architecture: no GPU is needed."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, "tests/server/update/cuda")
import machine_code

_CUOBJDUMP = os.environ["CUOBJDUMP"]
_ARCHITECTURES = ["sm_" + architecture for architecture in os.environ["ARCHITECTURES"].split()]
# By object: kernels, as they are in mangled names, and at most so many registers a thread. Blocks of 256
# threads share 65,536: three of them run at a time with 80.
_OBJECTS = {
    "server/update/cuda/squares_object": {"SquaresOfBlocks": 80, "SquaresOfSpans": 96},
    "server/update/cuda/matrices_kernels_object": {
        "8SetMeansIf": 80,
        "8SetMeansId": 80,
        "DivideByMeansIf": 80,
        "DivideByMeansId": 80,
        "9EstimatesIf": 80,
        "9EstimatesId": 80,
    },
    "server/update/cuda/halves_kernels_object": {
        "ScaleToHalvesIf": 64,
        "ScaleToHalvesId": 64,
        "WidenHalvesIf": 64,
        "WidenHalvesId": 64,
    },
}
# Without divisions of float64, which are made of fused operations.
_WITHOUT_DIVISION = (
    "SquaresOfBlocks",
    "SquaresOfSpans",
    "9EstimatesIf",
    "9EstimatesId",
    "WidenHalvesIf",
    "WidenHalvesId",
)


def _name(symbol, names):
    [name] = [kernel for kernel in names if kernel in symbol]
    return name


def _read(stem, read, *options):
    # For machine code it runs nvdisasm, which lies beside it.
    command = [_CUOBJDUMP, *options, stem + ".o"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        found = read(process.stdout)
    if process.returncode != 0:
        raise RuntimeError("%s: exit code %d" % (" ".join(command), process.returncode))
    return {_name(symbol, _OBJECTS[stem]): opcodes for symbol, opcodes in found.items()}


class MachineCode(unittest.TestCase):
    def sass(self):
        for stem, names in _OBJECTS.items():
            for architecture in _ARCHITECTURES:
                kernels = _read(stem, machine_code.read_sass, "-sass", "-arch", architecture)
                self.assertEqual(sorted(kernels), sorted(names), architecture)
                yield from kernels.items()

    def test_results_are_rounded_once(self):
        for stem, names in _OBJECTS.items():
            kernels = _read(stem, machine_code.read_ptx, "-ptx")
            self.assertEqual(sorted(kernels), sorted(names))
            for name, opcodes in kernels.items():
                kernel = machine_code.Kernel(name, "", 0, 0)
                self.assertEqual(machine_code.check_rounding(kernel, opcodes), [])

    def test_sums_are_not_fused_for_any_architecture(self):
        for name, opcodes in self.sass():
            if name in _WITHOUT_DIVISION:
                self.assertEqual([opcode for opcode in opcodes if opcode.startswith("DFMA")], [], name)

    def test_arrays_are_loaded_by_128_bits(self):
        for name, opcodes in self.sass():
            if name == "SquaresOfBlocks":
                # Of float32 and of float64.
                loads = sum(times for opcode, times in opcodes.items() if opcode.startswith("LDG.E.128"))
                self.assertGreaterEqual(loads, 3)
            if name == "ScaleToHalvesIf":
                self.assertGreaterEqual(opcodes.get("LDG.E.128", 0), 1)
            if name in ("ScaleToHalvesIf", "ScaleToHalvesId"):
                self.assertGreaterEqual(opcodes.get("STG.E.64", 0), 1)

    def test_nothing_is_spilled_and_registers_are_within_limits(self):
        for stem, registers in _OBJECTS.items():
            with open(stem + ".usage", encoding="utf-8") as lines:
                found = machine_code.read_usage(lines)
            self.assertEqual(sorted("sm_" + each for each in found), sorted(_ARCHITECTURES))
            for architecture, usages in found.items():
                for symbol, usage in usages.items():
                    name = _name(symbol, registers)
                    with self.subTest(kernel=name, architecture=architecture):
                        self.assertEqual((usage.frame, usage.spill_stores, usage.spill_loads), (0, 0, 0))
                        self.assertLessEqual(usage.registers, registers[name])


if __name__ == "__main__":
    unittest.main()
