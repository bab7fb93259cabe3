"""Compiled programs as graphs: every node, every edge, and what is marked."""

import re

import jax

from minfer_jax.model import Model
from tests.runtime.modules import DATA, MODULE, X, graph, real_program, text_of


def test_a_graph_has_a_node_for_every_instruction_that_is_not_fused() -> None:
    text = (DATA / "hlo_h200_scan.txt").read_text()
    nodes, edges, clusters = graph(text)
    drawn = [block for block in text.split("\n\n") if re.match(r"ENTRY|%region_[02]", block)]
    assert len(clusters) == len(drawn) == 3
    assert len(nodes) == sum(len(re.findall(r"^  .* = ", block, re.M)) for block in drawn)
    operands = [re.search(r" [a-z-]+\((%[^)]*)\)", line) for block in drawn for line in block.splitlines()[1:-1]]
    assert len(edges) == sum(m[1].count("%") for m in operands if m) + 2  # and from the loop to its body and condition

    labels = [label for label, _ in nodes.values()]
    assert sum("while 29 times" in label for label in labels) == 1
    (product,) = (label for label in labels if label.startswith('"gemm_fusion_dot_general.1'))
    assert product == r'"gemm_fusion_dot_general.1\nfusion dot, tanh\nf32[64,64]\neval_jaxpr/dot_general"'


def test_a_graph_marks_what_runs_on_the_host() -> None:
    nodes, _, _ = graph((DATA / "hlo_h200_host_compute.txt").read_text())
    marked = [label for label, style in nodes.values() if "tomato" in style]
    assert len(marked) == 1 and "HostExecute" in marked[0]
    nodes, _, _ = graph((DATA / "hlo_h200_host_output.txt").read_text())
    assert not any("tomato" in style for _, style in nodes.values())


def test_awkward_names_are_quoted() -> None:
    nodes, _, _ = graph(MODULE)
    assert any(r"custom-call a\"b" in label for label, _ in nodes.values())
    name = 'we"ird\\name{<|>'
    nodes, _, _ = graph(text_of(lambda x: jax.named_call(lambda x: x @ x, name=name)(x), X))
    assert any(r"we\"ird\\name{<|>/dot_general" in label for label, _ in nodes.values())


def test_the_decode_program_is_drawn_loop_in_loop(tiny: Model) -> None:
    text = real_program("decode early", tiny)
    nodes, edges, clusters = graph(text)
    assert len(nodes) > 100 and len(edges) > len(nodes) and len(clusters) > 4
    assert all(len(line) <= 2 * 60 for label, _ in nodes.values() for line in label.split(r"\n"))
