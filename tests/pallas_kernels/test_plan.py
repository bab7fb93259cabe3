"""Every real shape has a plan that fits the multiprocessor."""

import pytest

from pallas_kernels.quantised_matmul import FORMATS, Layout
from pallas_kernels.quantised_matmul.plan import COLUMNS, SHARED_BYTES, WARPS, Plan
from pallas_kernels.shapes import MODELS

SHAPES = sorted({(role == "gate_up", *shape) for m in MODELS.values() for role, shape in m.matrices.items()})


@pytest.mark.parametrize("name", FORMATS)
def test_plans_of_real_shapes(name):
    for gated, n, k in SHAPES:
        if k % FORMATS[name].block:
            continue
        for batch in range(1, COLUMNS + 1):
            layout, gate = (Layout(name, n // 2, k), "silu") if gated else (Layout(name, n, k), None)
            plan = Plan(layout, batch, gate, norm=True, residual=True)
            assert plan.stages >= (plan.depth if batch <= 4 else 1), plan  # else rows of x are halved
            assert plan.shared_bytes <= SHARED_BYTES
            assert plan.teams * plan.group <= WARPS
            assert plan.passes * plan.group >= plan.layout.chunks > (plan.passes - 1) * plan.group
            assert plan.ring_at % 128 == plan.barriers_at % 8 == plan.entries_at % 16 == 0
            assert plan.phases * plan.phase_units >= plan.units_per_cta


def test_the_order_of_sums_knows_columns_alone():
    plans = [
        Plan(Layout("Q4_0", n, 4864), batch, gate, ctas=ctas)
        for n in (16, 5000)
        for batch in (1, 3, 8)
        for gate in (None, "gelu")
        for ctas in (7, 132)
    ]
    assert len({(plan.passes, plan.group) for plan in plans}) == 1


def test_rows_of_x():
    with pytest.raises(ValueError, match="takes 1 to 8 rows of x, not 9"):
        Plan(Layout("Q4_0", 16, 64), 9)
