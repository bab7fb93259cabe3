"""The kernel of one product."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Numbers
from pallas_kernels.quantised_matmul.plan import Plan
from pallas_kernels.quantised_matmul.stage import Matrix, Stage


@cache
def kernel(plan: Plan) -> Any:
    """The product of that plan as one jitted function, so that all its calls share one compiled kernel.

    Takes words [tiles, tile words] uint32 and x [batch, K] float32, then, as the plan says, layer [1] int32 (words,
    norm and bias have an axis more in front), norm [K], bias [N], residual [batch, N] float32. Gives ``plan.out_shape``
    float32.
    """
    names = ["words", "x"] + [name for name in ("layer", "norm", "bias", "residual") if getattr(plan, name)]

    def quantised_matmul(*refs: Value) -> None:
        *inputs, y, shared = refs
        addresses = {name: ln.global_address(ref) for name, ref in zip(names, inputs, strict=True)}
        layer = ln.load_index(addresses["layer"]) if plan.layer else None
        matrix = Matrix(addresses["words"], addresses.get("norm"), addresses.get("bias"))
        own = matrix if layer is None else matrix.layer(plan, layer)
        stage = Stage.make(plan, own, ln.shared_address(shared), ln.cta())
        stage.ring.initialise()
        residual = Numbers(addresses["residual"]) if plan.residual else None
        with ln.when(ln.equal(ln.flag(stage.place.is_idle), 0)):
            stage.run(Numbers(addresses["x"]), residual, Numbers(ln.global_address(y)), stage.ring.start)

    return jax.jit(
        lane_kernel(
            quantised_matmul,
            jax.ShapeDtypeStruct(plan.out_shape, jnp.float32),
            ctas=plan.grid,
            warpgroups=-(-plan.warps // 4),
            shared_bytes=plan.shared_bytes,
        )
    )
