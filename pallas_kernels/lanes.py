"""Per-lane code: thin names for the PTX and MLIR operations that kernels are written in.

Every function emits operations where it is called, inside a ``compat.lane_kernel`` program; Python loops unroll.
Integers are i32 unless said otherwise; a Python number may stand for a constant of the other operand's type.
Float operations name their rounding, so that no compiler contracts or reorders them: bits depend on this.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pallas_kernels.compat import mosaic

Value = Any  # an MLIR value

_MOST_TRIES = 1 << 24  # each takes some 0.5 us


def i32() -> Any:
    return mosaic("ir").IntegerType.get_signless(32)


def i64() -> Any:
    return mosaic("ir").IntegerType.get_signless(64)


def f32() -> Any:
    return mosaic("ir").F32Type.get()


def integer(value: int) -> Value:
    return mosaic("utils").c(value - (1 << 32) if value >= 1 << 31 else value, i32())


def real(value: float) -> Value:
    return mosaic("utils").c(float(value), f32())


def _same(a: Value, b: Value | int) -> Value:
    return mosaic("utils").c(b, a.type) if isinstance(b, int) else b


# --- integers -----------------------------------------------------------------------------------------------------


def add(a: Value, b: Value | int) -> Value:
    return a if isinstance(b, int) and b == 0 else mosaic("arith").addi(a, _same(a, b))


def sub(a: Value, b: Value | int) -> Value:
    return mosaic("arith").subi(a, _same(a, b))


def mul(a: Value, b: Value | int) -> Value:
    return a if isinstance(b, int) and b == 1 else mosaic("arith").muli(a, _same(a, b))


def div(a: Value, b: Value | int) -> Value:
    """Unsigned quotient."""
    return mosaic("arith").divui(a, _same(a, b))


def rem(a: Value, b: Value | int) -> Value:
    """Unsigned remainder."""
    return mosaic("arith").remui(a, _same(a, b))


def land(a: Value, b: Value | int) -> Value:
    return mosaic("arith").andi(a, integer(b) if isinstance(b, int) and a.type == i32() else b)


def lor(a: Value, b: Value | int) -> Value:
    return mosaic("arith").ori(a, integer(b) if isinstance(b, int) else b)


def xor(a: Value, b: Value | int) -> Value:
    return mosaic("arith").xori(a, integer(b) if isinstance(b, int) else b)


def shift_right(a: Value, bits: int) -> Value:
    """Logical; a negative count shifts to the left."""
    if bits == 0:
        return a
    return mosaic("arith").shrui(a, integer(bits)) if bits > 0 else mosaic("arith").shli(a, integer(-bits))


def _compare(predicate: str, a: Value, b: Value | int) -> Value:
    arith = mosaic("arith")
    return arith.cmpi(getattr(arith.CmpIPredicate, predicate), a, _same(a, b))


def less(a: Value, b: Value | int) -> Value:
    """Unsigned."""
    return _compare("ult", a, b)


def negative(a: Value) -> Value:
    """Whether a signed number is."""
    return _compare("slt", a, 0)


def equal(a: Value, b: Value | int) -> Value:
    return _compare("eq", a, b)


def least(a: Value, b: Value | int) -> Value:
    """Unsigned minimum."""
    return mosaic("arith").minui(a, _same(a, b))


def least_signed(a: Value, b: int) -> Value:
    return mosaic("arith").minsi(a, integer(b))


def most(a: Value, b: Value | int) -> Value:
    """Unsigned maximum."""
    return mosaic("arith").maxui(a, _same(a, b))


def select(condition: Value, a: Value, b: Value) -> Value:
    return mosaic("arith").select(condition, a, b)


def both(a: Value, b: Value) -> Value:
    """i1 and i1."""
    return mosaic("arith").andi(a, b)


def either(a: Value, b: Value) -> Value:
    """i1 or i1."""
    return mosaic("arith").ori(a, b)


def flag(condition: Value) -> Value:
    """i1 -> 0 or 1."""
    return mosaic("arith").extui(i32(), condition)


def permute(a: Value, b: Value, selector: Value | int) -> Value:
    """Four bytes out of eight: nibble i of selector names byte i of the result."""
    selector = integer(selector) if isinstance(selector, int) else selector
    return ptx("prmt.b32 $0, $1, $2, $3;", a, b, selector, result=i32())


def byte_sum(a: Value, signed: bool) -> Value:
    """Sum of the four bytes."""
    kind = "s32" if signed else "u32"
    return ptx(f"dp4a.{kind}.{kind} $0, $1, $2, $3;", a, integer(0x01010101), integer(0), result=i32())


# --- floats -------------------------------------------------------------------------------------------------------


def as_float(a: Value) -> Value:
    """The same bits."""
    return mosaic("llvm").bitcast(f32(), a)


def as_int(a: Value) -> Value:
    return mosaic("llvm").bitcast(i32(), a)


def fadd(a: Value, b: Value) -> Value:
    return ptx("add.rn.f32 $0, $1, $2;", a, b, result=f32())


def fsub(a: Value, b: Value) -> Value:
    return ptx("sub.rn.f32 $0, $1, $2;", a, b, result=f32())


def fmul(a: Value, b: Value) -> Value:
    return ptx("mul.rn.f32 $0, $1, $2;", a, b, result=f32())


def fma(a: Value, b: Value, c: Value) -> Value:
    return ptx("fma.rn.f32 $0, $1, $2, $3;", a, b, c, result=f32())


def greatest(a: Value, b: Value) -> Value:
    """Maximum; NaN if either is."""
    return ptx("max.NaN.f32 $0, $1, $2;", a, b, result=f32())


def absolute(a: Value) -> Value:
    return ptx("abs.f32 $0, $1;", a, result=f32())


def root(a: Value) -> Value:
    return ptx("sqrt.rn.f32 $0, $1;", a, result=f32())


def reciprocal(a: Value) -> Value:
    return ptx("rcp.rn.f32 $0, $1;", a, result=f32())


def divide(a: Value, b: Value) -> Value:
    return ptx("div.rn.f32 $0, $1, $2;", a, b, result=f32())


def power_of_two(a: Value) -> Value:
    """2**a to about 22 bits."""
    return ptx("ex2.approx.f32 $0, $1;", a, result=f32())


def nearest(a: Value) -> Value:
    """The nearest integer, ties to even, as i32."""
    return ptx("cvt.rni.s32.f32 $0, $1;", a, result=i32())


def to_float(a: Value) -> Value:
    return ptx("cvt.rn.f32.s32 $0, $1;", a, result=f32())


def halves(a: Value) -> list[Value]:
    """Two float16 -> two float32."""
    return ptx(
        "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", a, result=[f32(), f32()]
    )


def as_halves(low: Value, high: Value) -> Value:
    """Two float32 -> two float16 in a word, rounded to nearest, infinity beyond the largest."""
    return ptx("cvt.rn.f16x2.f32 $0, $2, $1;", low, high, result=i32())


def brain_halves(a: Value) -> list[Value]:
    """Two bfloat16 -> two float32."""
    return [as_float(shift_right(a, -16)), as_float(land(a, 0xFFFF0000))]


# --- memory -------------------------------------------------------------------------------------------------------


def ptx(text: str, *operands: Value, result: Any = None, effect: bool = False, convergent: bool = False) -> Any:
    """One assembly text; result: a type, a list of types, or None."""
    types = tuple(result) if isinstance(result, list) else result
    done = mosaic("utils").inline_ptx(
        text, *operands, result_types=types, has_side_effects=effect or result is None, convergent=convergent
    )
    return list(done) if isinstance(result, list) else done


def global_address(ref: Value) -> Value:
    """i64 address of a reference to device memory."""
    return mosaic("llvm").ptrtoint(i64(), mosaic("utils").memref_ptr(ref))


def shared_address(ref: Value) -> Value:
    """i32 address of a reference to shared memory."""
    return mosaic("llvm").ptrtoint(i32(), mosaic("utils").memref_ptr(ref))


def wide(a: Value) -> Value:
    """i32 -> i64, unsigned."""
    return mosaic("arith").extui(i64(), a)


def offset(base: Value, a: Value) -> Value:
    """i64 base + unsigned i32."""
    return add(base, wide(a))


def _vector(n: int, first: int = 0) -> tuple[str, str]:
    """What n words are called in an instruction, and the n operands from ``first`` on."""
    names = ", ".join(f"${first + i}" for i in range(n))
    return ("", names) if n == 1 else (f".v{n}", f"{{{names}}}")


def load_global(address: Value, n: int, valid: Value) -> list[Value]:
    """n = 1, 2 or 4 float32 that nobody writes meanwhile; zeros where valid (i1) is false. Stays put."""
    ir, llvm = mosaic("ir"), mosaic("llvm")
    kind, names = _vector(n)
    zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(n))
    text = f"{{ .reg .pred p; setp.ne.b32 p, ${n + 1}, 0; {zeros} @p ld.global.nc{kind}.b32 {names}, [${n}]; }}"
    # Early clobber: outputs are written before the address is read.
    constraints = ",".join(["=&f"] * n + ["l", "r"])
    types = [f32()] * n
    whole = ir.Type.parse("f32") if n == 1 else llvm.StructType.get_literal(types)
    done = llvm.inline_asm(whole, [address, flag(valid)], text, constraints, has_side_effects=True)
    return [done] if n == 1 else [llvm.extractvalue(f32(), done, [i]) for i in range(n)]


def load_index(address: Value) -> Value:
    return ptx("ld.global.nc.b32 $0, [$1];", address, result=i32())


def store_global(address: Value, *values: Value) -> None:
    """1, 2 or 4 words."""
    kind, names = _vector(len(values), 1)
    ptx(f"st.global{kind}.b32 [$0], {names};", address, *values)


def load_mail(addresses: Sequence[Value], valid: Sequence[Value], n: int, tag: Value) -> list[list[Value]]:
    """From each address, n (1 or 4) float32 that carry that tag, once they do; zeros where valid (i1) is false.

    A number and its tag are one word of 64 bits, which is read and written whole, so no other order of memory is
    relied on. All words are asked for together. Gives up after some seconds, by a trap.
    """
    llvm = mosaic("llvm")
    count, pieces = len(addresses), n // 2 or 1
    tag_at, address_at = n * count, n * count + 1
    start, ask, check = [], [], []
    for i in range(count):
        start.append(f"setp.ne.b32 v{i}, ${address_at + count + i}, 0;")
        for piece in range(pieces):
            words = [f"w{i}_{piece * 2 + j}" for j in range(min(n, 2))]
            start += [f"mov.b64 {word}, {{z, ${tag_at}}};" for word in words]
            target, kind = (words[0], "") if n == 1 else (f"{{{', '.join(words)}}}", ".v2")
            ask.append(f"@v{i} ld.relaxed.gpu.global{kind}.b64 {target}, [${address_at + i}+{16 * piece}];")
            for j, word in enumerate(words):
                out = n * i + piece * 2 + j
                check.append(f"mov.b64 {{${out}, t}}, {word}; xor.b32 t, t, ${tag_at}; or.b32 m, m, t;")
    words = ", ".join(f"w{i}_{j}" for i in range(count) for j in range(n))
    text = (
        f"{{ .reg .pred p, v<{count}>; .reg .b64 {words}; .reg .b32 z, t, m, tries; mov.b32 z, 0; mov.b32 tries, 0;"
        f" {' '.join(start)} $$L_mail_${{:uid}}: mov.b32 m, 0; {' '.join(ask)} {' '.join(check)}"
        f" add.u32 tries, tries, 1; setp.gt.u32 p, tries, {_MOST_TRIES}; @p trap;"
        " setp.ne.b32 p, m, 0; @p bra $$L_mail_${:uid}; }"
    )
    constraints = ",".join(["=&r"] * (n * count) + ["r"] + ["l"] * count + ["r"] * count)
    types = [i32()] * (n * count)
    whole = i32() if n * count == 1 else llvm.StructType.get_literal(types)
    operands = [tag, *addresses, *(flag(v) for v in valid)]
    done = llvm.inline_asm(whole, operands, text, constraints, has_side_effects=True, convergent=True)
    flat = [done] if n * count == 1 else [llvm.extractvalue(i32(), done, [i]) for i in range(n * count)]
    return [[as_float(x) for x in flat[n * i : n * i + n]] for i in range(count)]


def store_mail(address: Value, value: Value, tag: Value) -> None:
    """A float32 with its tag, for :func:`load_mail` of any block."""
    text = "{ .reg .b64 w; mov.b64 w, {$1, $2}; st.relaxed.gpu.global.b64 [$0], w; }"
    ptx(text, address, as_int(value), tag)


def load_shared(address: Value, n: int, at: int = 0, real: bool = False) -> list[Value]:
    """n = 1, 2 or 4 words at address + at, as i32 or f32."""
    kind, names = _vector(n)
    types = [f32() if real else i32()] * n
    return ptx(f"ld.shared{kind}.b32 {names}, [${n}+{at}];", address, result=types, effect=True)


def store_shared(address: Value, *values: Value, at: int = 0) -> None:
    """1, 2 or 4 words."""
    kind, names = _vector(len(values), 1)
    ptx(f"st.shared{kind}.b32 [$0+{at}], {names};", address, *values)


# --- threads ------------------------------------------------------------------------------------------------------


def thread() -> Value:
    """Read anew at each call, so that the compiler keeps what follows from it near to its use, not in registers."""
    return ptx("mov.u32 $0, %tid.x;", result=i32(), effect=True)


def cta() -> Value:
    """As :func:`thread`."""
    return ptx("mov.u32 $0, %ctaid.x;", result=i32(), effect=True)


def warp_of(thread: Value) -> Value:
    """Index of the warp, in a form that the compiler knows to be the same in all its lanes."""
    return ptx("shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;", shift_right(thread, 5), result=i32(), convergent=True)


def neighbour(a: Value, distance: int) -> Value:
    """The value of lane ``own ^ distance``."""
    return ptx(
        f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;", a, result=a.type, effect=True, convergent=True
    )


def barrier() -> None:
    """All threads of the block."""
    ptx("bar.sync 0;", convergent=True)


def group_barrier(first: int, threads: int, group: Value | None = None, groups: int = 1) -> None:
    """The threads of a group of that size. Group i of ``groups`` waits at barrier ``first`` + i, of 1 to 15: groups
    that wait at a time have different ones."""
    if group is None:
        ptx(f"bar.sync {first}, {threads};", convergent=True)
        return
    own = " ".join(f"setp.eq.u32 p, $0, {i}; @p bar.sync {first + i}, {threads};" for i in range(groups))
    ptx(f"{{ .reg .pred p; {own} }}", group, convergent=True)


def warp_barrier() -> None:
    ptx("bar.warp.sync 0xffffffff;", convergent=True)


def when(condition: Value) -> AbstractContextManager[None]:
    return mosaic("utils").when(condition)


def loop(start: Value | int, stop: Value | int, body: Callable[[Value], None]) -> None:
    """for i in range(start, stop): body(i); nothing is carried in registers."""
    ir, arith, scf, utils = (mosaic(name) for name in ("ir", "arith", "scf", "utils"))
    index = ir.IndexType.get()
    ends = [utils.c(v, index) if isinstance(v, int) else arith.index_cast(index, v) for v in (start, stop)]
    op = scf.ForOp(*ends, utils.c(1, index), [])
    with ir.InsertionPoint(op.body):
        body(arith.index_cast(i32(), op.induction_variable))
        scf.yield_([])


def carried_loop(
    start: Value | int, stop: Value | int, state: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
) -> list[Value]:
    """for i in range(start, stop): state = body(i, state); the state stays in registers."""
    ir, arith, scf, utils = (mosaic(name) for name in ("ir", "arith", "scf", "utils"))
    index = ir.IndexType.get()
    ends = [utils.c(v, index) if isinstance(v, int) else arith.index_cast(index, v) for v in (start, stop)]
    op = scf.ForOp(*ends, utils.c(1, index), list(state))
    with ir.InsertionPoint(op.body):
        scf.yield_(list(body(arith.index_cast(i32(), op.induction_variable), list(op.inner_iter_args))))
    return list(op.results)


# --- asynchronous copies ------------------------------------------------------------------------------------------


def init_transfer_barrier(address: Value) -> None:
    """An mbarrier of one arrival, to be called by one lane; then ``fence_transfer_barriers``."""
    ptx("mbarrier.init.shared::cta.b64 [$0], 1;", address)


def fence_transfer_barriers() -> None:
    """Initialised mbarriers become visible to the copy engine."""
    ptx("fence.mbarrier_init.release.cluster;")
    ptx("fence.proxy.async.shared::cta;")


def fence_copies() -> None:
    """What this thread wrote to shared memory comes before later copies, if a barrier stands between them."""
    ptx("fence.proxy.async.shared::cta;")


def start_copy(issue: Value, mbarrier: Value, target: Value, source: Value, size: Value) -> None:
    """Where issue (i1) holds: copy size bytes (a multiple of 16, or 0) from device to shared memory, counted by
    mbarrier."""
    ptx(
        "{ .reg .pred p, q; setp.ne.b32 p, $0, 0; setp.ne.and.b32 q, $4, 0, p;"
        " @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $4;"
        " @q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$2], [$3], $4, [$1]; }",
        flag(issue),
        mbarrier,
        target,
        source,
        size,
    )


def await_copy(mbarrier: Value, parity: Value) -> None:
    """Until the phase of that parity is complete."""
    ptx(
        "{ .reg .pred p; $$L_wait_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;"
        " @!p bra $$L_wait_${:uid}; }",
        mbarrier,
        parity,
        convergent=True,
    )


# --- tensor cores -------------------------------------------------------------------------------------------------


def integer_mma(c: Sequence[Value], a: Sequence[Value], b: Sequence[Value], signed: tuple[bool, bool]) -> list[Value]:
    """16 x 8 tile c += a b over 8-bit integers, 32 wide with four words of a, 16 wide with two.

    Lane 4 g + t holds c (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1); of a rows g, g + 8 and of b column g the
    bytes 4t .. 4t + 3, then the same 16 further. signed: whether the bytes of a and b are.
    """
    na, nb = len(a), len(b)
    names = [f"${i}" for i in range(8 + na + nb)]
    kinds = ["s8" if s else "u8" for s in signed]
    parts = [names[:4], names[4 : 4 + na], names[4 + na : 4 + na + nb], names[4 + na + nb :]]
    operands = ", ".join("{" + ", ".join(part) + "}" for part in parts)
    text = f"mma.sync.aligned.m16n8k{8 * na}.row.col.s32.{kinds[0]}.{kinds[1]}.s32 {operands};"
    return ptx(text, *a, *b, *c, result=[i32()] * 4)
