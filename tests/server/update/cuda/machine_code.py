"""What nvcc made of the kernels, as cuobjdump and ptxas print it, and what must be true of it.

A check returns complaints, one text for each kernel that breaks its rule.
"""

import collections
import re
import subprocess

PLAIN_FLOAT32 = "plain float32"
PLAIN_FLOAT64 = "plain float64"
BFLOAT16 = "bfloat16"
MASTER = "bfloat16 with a master"
MIXED = "mixed"
CODED_FLOAT32 = "coded float32"
CODED = "coded"
CODED_PASSES = (CODED_FLOAT32, CODED)
PASSES = (PLAIN_FLOAT32, PLAIN_FLOAT64, BFLOAT16, MASTER, MIXED, *CODED_PASSES)
# By the value of KernelPass (server/update/cuda/kernel_arguments.h).
_PASS = {1: BFLOAT16, 2: MASTER, 3: MIXED, 4: CODED_FLOAT32, 5: CODED}

# At most so many registers a thread, what nvcc 13.0 needs rounded up to the 8 that a GPU gives at a
# time. Blocks of 256 threads share the 65,536 of a multiprocessor: with 80 it runs 3 blocks, with 128
# it runs 2.
REGISTERS = {
    PLAIN_FLOAT32: 80,
    PLAIN_FLOAT64: 112,
    BFLOAT16: 80,
    MASTER: 80,
    MIXED: 120,
    CODED_FLOAT32: 96,
    CODED: 128,
}

# `slots`: how many it has. `variant`: which, as a SlotSet (server/update/formula_limits.h).
Kernel = collections.namedtuple("Kernel", "formula pass_name variant slots")
# What ptxas says of one kernel; bytes a thread, but registers.
Usage = collections.namedtuple("Usage", "registers frame spill_stores spill_loads")

_KERNEL = re.compile(
    r"optshard::kernels::(?:Plain|Mixed)Kernel<optshard::kernels::\(anonymous namespace\)::(\w+), "
    r"(?:(float|double), )?(\d+)u(?:, \(optshard::KernelPass\)(\d))?>\("
)


def kernel_of(demangled):
    """The Kernel of a function's name, or None."""
    match = _KERNEL.search(demangled)
    if not match:
        return None
    formula, element, variant, number = match.groups()
    if element:
        pass_name = PLAIN_FLOAT32 if element == "float" else PLAIN_FLOAT64
    else:
        pass_name = _PASS[int(number)]
    return Kernel(formula, pass_name, int(variant), bin(int(variant)).count("1"))


def by_kernel(by_symbol):
    """The same with Kernel instead of mangled names. Raises ValueError where one is no kernel."""
    symbols = list(by_symbol)
    names = subprocess.run(
        ["c++filt"], input="\n".join(symbols), stdout=subprocess.PIPE, encoding="utf-8", check=True
    ).stdout.splitlines()
    kernels = {}
    for symbol, name in zip(symbols, names):
        kernel = kernel_of(name)
        if not kernel or kernel in kernels:
            raise ValueError("not a kernel, or a second one of the same: %s" % name)
        kernels[kernel] = by_symbol[symbol]
    return kernels


_SASS_FUNCTION = re.compile(r"\s*Function : (\S+)")
_SASS_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)")


def read_sass(lines):
    """Symbol -> how often each instruction stands in it: of `cuobjdump -sass` for one architecture."""
    functions = {}
    function = None
    for line in lines:
        match = _SASS_INSTRUCTION.match(line)
        if match:
            function[match.group(1)] += 1
            continue
        match = _SASS_FUNCTION.match(line)
        if match:
            function = functions.setdefault(match.group(1), collections.Counter())
    return functions


_PTX_FUNCTION = re.compile(r"(?:\.visible |\.weak )?\.(?:entry|func)\b.*?([\w$]+)\($")
_PTX_INSTRUCTION = re.compile(r"[\s{]*(?:@!?%p\d+\s+)?([a-z][\w.]*)")


def read_ptx(lines):
    """Symbol -> how often each instruction stands in it: of `cuobjdump -ptx`."""
    functions = {}
    function = None
    for line in lines:
        match = _PTX_FUNCTION.match(line.strip())
        if match:
            function = functions.setdefault(match.group(1), collections.Counter())
            continue
        for statement in line.split(";")[:-1]:
            match = _PTX_INSTRUCTION.match(statement) if function is not None else None
            if match:
                function[match.group(1)] += 1
    return functions


_USAGE_FUNCTION = re.compile(r"ptxas info    : Compiling entry function '(\S+)' for 'sm_(\d+)'")
_USAGE_FRAME = re.compile(
    r"\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USAGE_REGISTERS = re.compile(r"ptxas info    : Used (\d+) registers")


def read_usage(lines):
    """Architecture -> symbol -> Usage: of `ptxas -v`."""
    architectures = {}
    symbol = architecture = frame = None
    for line in lines:
        match = _USAGE_FUNCTION.match(line)
        if match:
            symbol, architecture = match.groups()
        match = _USAGE_FRAME.match(line)
        if match:
            frame = map(int, match.groups())
        match = _USAGE_REGISTERS.match(line)
        if match:
            usage = Usage(int(match.group(1)), *frame)
            architectures.setdefault(architecture, {})[symbol] = usage
    return architectures


def _name(kernel, where):
    return "%s, %s, slots %d, %s" % (kernel.formula, kernel.pass_name, kernel.variant, where)


# Of PTX: what computes with floats and rounds, and what gives an exact result.
_ROUNDED = re.compile(r"(?:add|sub|mul|div|rcp|sqrt)\.rn\.f(?:32|64)$")
_EXACT = re.compile(r"(?:abs|neg|min|max|copysign|selp|mov|setp?|slct|ld|st)\.(?!.*\b(?:ftz|approx)\b)")
# To the nearest, or an integer of a number that is one; never to where denormals are lost.
_CONVERSION = re.compile(r"cvt\.(?:rni?\.|rzi\.)?(?:bf16x2|f16x2|[fsu]\d+)\.[fsu]\d+$")
_OF_FLOATS = re.compile(r"\.f(?:16|32|64)(?:x2)?\b")


def check_rounding(kernel, ptx):
    """Every result is rounded once: nothing is fused or approximated, and denormals stay."""
    fused = sorted(
        opcode
        for opcode in ptx
        if _OF_FLOATS.search(opcode)
        and not (_ROUNDED.match(opcode) or _EXACT.match(opcode) or _CONVERSION.match(opcode))
    )
    return [_name(kernel, "PTX") + ": " + ", ".join(fused)] if fused else []


def divides(ptx):
    """Whether it has a division or a square root, which machine code makes of fused operations."""
    return any(re.match(r"(?:div|rcp|sqrt)\.rn\.f", opcode) for opcode in ptx)


def check_no_fused(kernel, architecture, sass, ptx):
    """A kernel that does not divide has no fused operations in its machine code either."""
    fused = sorted(opcode for opcode in sass if re.match(r"U?[FD]FMA", opcode))
    if divides(ptx) or not fused:
        return []
    return [_name(kernel, architecture) + ": " + ", ".join(fused)]


def _count(sass, pattern):
    return sum(times for opcode, times in sass.items() if re.match(pattern, opcode))


# A slot that a formula only writes is not loaded, and a parameter that it only reads need not be stored.
_UNREAD_SLOTS = {"LambDirection": 1, "MuonDirection": 1}
_KEEPS_PARAMETER = ("LambDirection", "MuonDirection")
# They write the parameter alone, which compilers see. For sm_80 and sm_90 nvcc stores it one element at a
# time then, where all arrays are of one type.
_UNREAD_PARAMETER = ("AdafactorAverage", "AdafactorGradient", "AdafactorVector")


def _widths(kernel):
    """At least so many accesses of each width: two for each array of a mixed kernel, in each type.

    What is loaded is the parameter or its master, the gradient and the slots; what is stored, all of
    these but the gradient, and the parameter beside a master. Compilers may share stores among types.
    """
    reads_parameter = kernel.formula not in _UNREAD_PARAMETER
    read = 1 + reads_parameter + kernel.slots - _UNREAD_SLOTS.get(kernel.formula, 0)
    if kernel.pass_name in (PLAIN_FLOAT32, PLAIN_FLOAT64):
        stores_parameter = reads_parameter and kernel.formula not in _KEEPS_PARAMETER
        return {"LDG.E.128": read, "STG.E.128": kernel.slots + stores_parameter}
    if kernel.pass_name == BFLOAT16:
        return {"LDG.E.64": 2 * read, "STG.E.64": 2 * (1 + kernel.slots)}
    if kernel.pass_name == MASTER:
        return {"LDG.E.128": 2 * (read - 1), "STG.E.128": 2 * (1 + kernel.slots), "LDG.E.64": 2, "STG.E.64": 2}
    if kernel.pass_name == CODED_FLOAT32:
        return {"LDG.E.128": 2 * (1 + reads_parameter), "STG.E.128": 2}
    return {"LDG.E.128": 2 * read, "LDG.E.64": 2 * read, "STG.E.128": 2, "STG.E.64": 2}


def check_width(kernel, architecture, sass):
    """Loads and stores are as wide as four elements, which is 128 bits of float32."""
    found = {}
    for name, least in _widths(kernel).items():
        times = _count(sass, re.escape(name) + r"(?!\d)")
        if times < least:
            found[name] = "%d of %s, expected at least %d" % (times, name, least)
    return ["%s: %s" % (_name(kernel, architecture), text) for text in found.values()]


def check_spaces(kernel, architecture, sass):
    """Accesses name the memory that they go to. Local memory is where spilled registers go."""
    bad = sorted(opcode for opcode in sass if re.match(r"(?:LD|ST|LDL|STL)(?:\.|$)", opcode))
    return [_name(kernel, architecture) + ": " + ", ".join(bad)] if bad else []


def check_no_double(kernel, architecture, sass):
    """A float32 kernel has no machine code for double, which most GPUs are slow at."""
    if kernel.pass_name == PLAIN_FLOAT64:
        return []
    double = sorted(
        opcode
        for opcode in sass
        if re.match(r"D(?:ADD|MUL|FMA|SETP|MNMX)\b|MUFU\.\w+64H|\w+(?:\.\w+)*\.F64\b", opcode)
    )
    return [_name(kernel, architecture) + ": " + ", ".join(double)] if double else []


def check_usage(kernel, architecture, usage):
    """Nothing is spilled, nothing lies on a stack, and registers are within REGISTERS."""
    complaints = []
    if usage.frame or usage.spill_stores or usage.spill_loads:
        complaints.append(
            "a stack frame of %d bytes, spills of %d and %d"
            % (usage.frame, usage.spill_stores, usage.spill_loads)
        )
    if usage.registers > REGISTERS[kernel.pass_name]:
        complaints.append(
            "%d registers, expected at most %d" % (usage.registers, REGISTERS[kernel.pass_name])
        )
    return ["%s: %s" % (_name(kernel, architecture), text) for text in complaints]


def check_same_kernels(kernels_by_place):
    """Every place has the same kernels, and each variant of a formula is there in every pass."""
    every = set().union(*kernels_by_place.values())
    complaints = [
        "%s: missing" % _name(kernel, place)
        for place, kernels in kernels_by_place.items()
        for kernel in sorted(every - set(kernels))
    ]
    variants = {(kernel.formula, kernel.variant, kernel.slots) for kernel in every}
    complaints += [
        "%s: missing" % _name(kernel, "everywhere")
        for kernel in (
            Kernel(formula, pass_name, variant, slots)
            for formula, variant, slots in sorted(variants)
            for pass_name in PASSES
        )
        if kernel not in every and (kernel.slots > 0 or kernel.pass_name not in CODED_PASSES)
    ]
    return complaints or ([] if every else ["no kernel at all"])
