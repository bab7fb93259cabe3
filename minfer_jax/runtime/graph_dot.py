"""Graphviz DOT of a compiled program, from its optimised HLO text."""

import re
from collections import Counter

from minfer_jax.runtime.hlo import HOST_MEMORY, Instruction, Module, host_boundaries, parse

_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_LONGEST = 60  # characters in a line of a label
_DATA_FLOW = 'shape=plaintext, fontcolor="gray50"'
_CONTROL_FLOW = 'style=filled, fillcolor="moccasin"'
_WORK = 'style=filled, fillcolor="lightblue"'
_HOST = 'style=filled, fillcolor="tomato"'


def dot(text: str) -> str:
    """A graph of every computation that runs: a node per instruction, an edge per operand.

    Loop bodies, conditions, branches and calls are clusters inside that of their caller, with a dashed edge from it.
    A fusion is one node that says what it holds; red nodes are host boundaries (see ``hlo.splits``).
    Raises ArgumentError if the text is not that of a compiled module.
    """
    module = parse(text)
    lines = ["digraph {", "compound=true", 'node [shape=box, fontname="Helvetica", fontsize=10]']
    clusters: dict[str, int] = {}
    _draw(module, module.entry, module.entry, clusters, lines)
    for name, cluster in clusters.items():
        computation = module.computations[name]
        nodes = {instruction: f"n{cluster}_{i}" for i, instruction in enumerate(computation)}
        for instruction in computation.values():
            node = nodes[instruction.name]
            lines += [f"{nodes[operand]} -> {node}" for operand in instruction.operands if operand in nodes]
            called = [clusters[name] for name in instruction.runs if module.computations.get(name)]
            lines += [f"{node} -> n{number}_0 [style=dashed, lhead=cluster_{number}]" for number in called]
    return "\n".join([*lines, "}", ""])


def _draw(module: Module, name: str, title: str, clusters: dict[str, int], lines: list[str]) -> None:
    """Write computation ``name`` as a cluster, and inside it those that it runs, each once."""
    number = clusters[name] = len(clusters)
    lines += [f"subgraph cluster_{number} {{", f"label={_quoted(title)}"]
    boundaries = {instruction.name for instruction in host_boundaries(module, name)}
    for i, instruction in enumerate(module.computations[name].values()):
        style = _WORK if instruction.works else _CONTROL_FLOW if instruction.runs else _DATA_FLOW
        style = _HOST if instruction.name in boundaries else style
        lines.append(f"n{number}_{i} [label={_quoted(*_label(module, instruction))}, {style}]")
        for called, attribute in instruction.runs.items():
            if called in module.computations and called not in clusters:
                _draw(module, called, f"{attribute} of {instruction.name}: {called}", clusters, lines)
    lines.append("}")


def _label(module: Module, instruction: Instruction) -> list[str]:
    """Name; opcode with what tells one such instruction from another; shape without layout; end of the op's path."""
    attributes = instruction.attributes
    fused = [i for name in instruction.called("calls") for i in module.computations.get(name, {}).values()]
    held = Counter(i.opcode for i in fused if i.works)
    details = [
        attributes.get("custom_call_target", ""),
        attributes.get("index", ""),
        "" if instruction.trip_count is None else f"{instruction.trip_count} times",
        ", ".join(opcode if n == 1 else f"{n} {opcode}" for opcode, n in held.most_common()),
    ]
    shape = _LAYOUT.sub(lambda layout: "@host" if HOST_MEMORY in layout[0] else "", instruction.shape)
    path = "/".join(attributes.get("op_name", "").split("/")[-2:])
    lines = [instruction.name, " ".join([instruction.opcode, *filter(None, details)]), shape, path]
    return [line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..." for line in lines if line]


def _quoted(*lines: str) -> str:
    """A DOT string of these lines."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
