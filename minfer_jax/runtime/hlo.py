"""Facts about a compiled program, read from its optimised HLO text (``compiled.as_text()``).

That text is a debug print without a specified grammar and differs between versions and backends. So a line that is
not understood is an instruction with no opcode, never an error, and an opcode that is not known counts as work.
"""

import re
from dataclasses import dataclass

from minfer_jax.errors import ArgumentError

_STRING = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([^\s(]+).*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT\s+)?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w-]*)\(")
_NAME = re.compile(r"%([^\s,(){}]+)")
_PARENTHESIS = re.compile(rf"{_STRING}|[()]")
_ATTRIBUTE = re.compile(rf"(?<![\w-])([\w-]+)=(?:{_STRING}|(\{{%[^{{}}]*\}}|[^\s,{{}}\"]+))|{_STRING}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')

_NO_WORK = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all add-dependency opt-barrier domain".split()
)
_CONTROL_FLOW = {
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "call": ("to_apply",),
    "async": ("calls",),
}
HOST_MEMORY = "S(5)"
"""In the layout of a shape: the value is in the memory of the host."""

_PYTHON_CALLBACK = re.compile(r"python\w*callback")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    shape: as printed, with layout; operands: names, in order; attributes: as printed, without quotes, those inside
    ``metadata`` among them; trip_count: how often a ``while`` runs its body, where XLA has found that out.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: dict[str, str]
    trip_count: int | None

    def called(self, attribute: str) -> list[str]:
        """Names of the computations that an attribute lists."""
        return _NAME.findall(self.attributes.get(attribute, ""))

    @property
    def runs(self) -> dict[str, str]:
        """The computations that this instruction runs as control flow, each with the attribute that names it.

        Not the insides of a fusion, nor what a reduction or a sort applies to its elements.
        """
        attributes = _CONTROL_FLOW.get(self.opcode.removesuffix("-start"), ())
        return {name: attribute for attribute in attributes for name in self.called(attribute)}

    @property
    def works(self) -> bool:
        """Whether the device is given something to do: data flow, control flow and the ends of asynchronous work
        are free."""
        return not (self.opcode in _NO_WORK or self.opcode.endswith(("-done", "-update")) or self.runs)


Computation = dict[str, Instruction]


@dataclass(frozen=True)
class Module:
    """computations: by name, callees before callers as XLA prints them; entry: name of the one that is run."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """The computations of a module; ArgumentError if the text has no entry computation."""
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.split("\n"):
        if line[:1].isspace():
            if current is not None and (instruction := _parse_instruction(line)):
                current[instruction.name] = instruction
        elif header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
    if entry is None:
        raise ArgumentError("text has no entry computation: give the text of a compiled module, compiled.as_text()")
    return Module(computations, entry)


def _parse_instruction(line: str) -> Instruction | None:
    head = _INSTRUCTION.match(line)
    if head is None:
        return None
    start = head.end()
    end_of_shape = _closing(line, start) if line[start : start + 1] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, end_of_shape) if end_of_shape > 0 else None
    if opcode is None:
        return Instruction(head[1], "", line[start:], (), {}, None)
    end = _closing(line, opcode.end() - 1)
    found = (m for m in _ATTRIBUTE.finditer(line, end) if m[1])
    attributes = {m[1]: m[3] if m[2] is None else re.sub(r"\\(.)", r"\1", m[2]) for m in found}
    operands = tuple(_NAME.findall(line, opcode.end(), end))
    trips = _TRIP_COUNT.search(line, end)
    return Instruction(
        head[1], opcode[1], line[start:end_of_shape], operands, attributes, int(trips[1]) if trips else None
    )


def _closing(line: str, start: int) -> int:
    """The place after the parenthesis that closes the one at ``start``; the end of the line if none does."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(line)


def splits(text: str) -> int:
    """How many host-to-host segments of device work the program has: 1, and one more for every host boundary.

    A host boundary is an instruction at which code or data of the host comes in between: a Python callback, an infeed
    or outfeed, a send or receive of a host transfer, a computation that runs on the host, a value that was put into
    host memory and is read back. An instruction in a loop counts once. No boundaries are: an output that ends in
    host memory (the readback), an argument there that the entry computation reads, custom calls of libraries and of
    ours, and XLA's own look at the predicate of a conditional or a loop.
    Raises ArgumentError if the text is not that of a compiled module.
    """
    module = parse(text)
    instructions = (i for computation in module.computations.values() for i in computation.values())
    fused = {name for i in instructions if i.opcode.startswith("fusion") for name in i.called("calls")}
    return 1 + sum(len(host_boundaries(module, name)) for name in module.computations if name not in fused)


def host_boundaries(module: Module, name: str) -> list[Instruction]:
    """The instructions of computation ``name`` at which ``splits`` cuts."""
    computation = module.computations[name]
    origins: dict[str, Instruction] = {}  # of each value, the instruction that made it, seen through bitcasts and such
    found: dict[str, Instruction] = {}

    def comes_back(value: str) -> bool:
        origin = origins.get(value)
        if origin is None or HOST_MEMORY not in computation[value].shape or origin.name in found:
            return False
        return not (origin.opcode == "parameter" and name == module.entry)

    for instruction in computation.values():
        passes_on = instruction.operands and not instruction.works and not instruction.runs
        source = instruction.operands[0] if passes_on else ""
        origins[instruction.name] = origins.get(source, instruction)
        # Asynchronous starts have their operands, host memory or not, in their own shape.
        stays = HOST_MEMORY in instruction.shape and not instruction.opcode.endswith("-start")
        reads = instruction.works and not stays and any(map(comes_back, instruction.operands))
        if reads or _is_host_code(instruction):
            found[instruction.name] = instruction
    return list(found.values())


def _is_host_code(instruction: Instruction) -> bool:
    attributes = instruction.attributes
    target = attributes.get("custom_call_target", "")
    return not instruction.opcode.endswith(("-done", "-update")) and (
        instruction.opcode in ("infeed", "outfeed")
        or (instruction.opcode in ("send", "recv") and attributes.get("is_host_transfer") == "true")
        or attributes.get("async_execution_thread") == "host"
        or target == "HostExecute"
        or _PYTHON_CALLBACK.search(target) is not None
    )


def kernels(text: str) -> int:
    """How many pieces of device work one execution launches, at least.

    An instruction that does work is one launch: a fusion, a product, a copy, a call of a library (however many
    kernels that starts by itself). Loop bodies count as often as they run where XLA knows that; a loop of unknown
    length counts once, its condition too. Of the branches of a conditional the one with the fewest counts: when tokens
    are drawn, that of greedy decoding.
    Raises ArgumentError if the text is not that of a compiled module.
    """
    module = parse(text)
    total: dict[str, int] = {}

    def launches(instruction: Instruction) -> int:
        if instruction.trip_count is not None:  # a counter of the host replaces the condition
            return instruction.trip_count * sum(total.get(name, 0) for name in instruction.called("body"))
        called = [total.get(name, 0) for name in instruction.runs]
        return instruction.works + (min(called, default=0) if instruction.opcode == "conditional" else sum(called))

    for name, computation in module.computations.items():
        total[name] = sum(map(launches, computation.values()))
    return total[module.entry]
