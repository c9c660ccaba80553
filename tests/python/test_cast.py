# SPDX-License-Identifier: Apache-2.0
"""The conversions of tensorhub-convert(7) against torch on the CPU, and what others publish.

Each formula that the page names is written here in torch's words; the ones that it says are the
same give the same bits, for each set of instructions that this CPU has, and the others do not.
"""

import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PIPE = os.path.join(os.environ["TH_BUILD"], "tests", "support", "cast_pipe")
ROUND, BLOCK, POW2, CHANNEL = 1, 2, 3, 4
NUMBERS = {torch.float16: 6, torch.bfloat16: 7, torch.float32: 10, torch.float8_e4m3fn: 14}
E4M3, F32 = torch.float8_e4m3fn, torch.float32
TYPES = [torch.bfloat16, torch.float16, torch.float32]
NO_SUCH_INSTRUCTIONS = 77


def kinds():
    """Those that this CPU has."""
    found = []
    for kind in ("plain", "avx2", "avx512"):
        command = [PIPE, kind, "1", "10", "7", "0", "0"]
        status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        assert status in (0, NO_SUCH_INSTRUCTIONS)
        if status == 0:
            found.append(kind)
    assert "plain" in found
    return found


KINDS = kinds()


def cast(kind, scheme, x, to, block=()):
    """(tensor of type to, scales) as transport/cast makes them."""
    rows, columns = x.shape
    numbers = [scheme, NUMBERS[x.dtype], NUMBERS[to], rows, columns, *block]
    made = subprocess.run(
        [PIPE, kind, *map(str, numbers)],
        input=x.contiguous().view(torch.uint8).numpy().tobytes(),
        stdout=subprocess.PIPE, check=True)  # fmt: skip
    data = torch.frombuffer(bytearray(made.stdout), dtype=torch.uint8)
    size = rows * columns * to.itemsize
    return data[:size].view(to).view(rows, columns), data[size:].view(F32)


def bits(x):
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.dtype.itemsize])


def same(ours, theirs):
    """Bit for bit; a NaN, of which there is one here and are many there, is a NaN."""
    nan = torch.isnan(theirs.float())
    assert torch.equal(torch.isnan(ours.float()), nan)
    return torch.equal(bits(ours)[~nan], bits(theirs)[~nan])


def weights(dtype, rows=300, columns=333, seed=0):
    """Of every size, with blocks of nothing, of little, and with what is not finite."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * torch.exp2(
        torch.randint(-12, 3, (rows, 1), generator=generator).float())
    x[:128, :128] = 0
    x[128:256, :128] *= 1e-4
    x[3, 300] = float("inf")
    x[140, 310] = float("nan")
    return x.to(dtype)


def blocks_of(x, side=128):
    """Filled up with zeros: (block rows, side, block columns, side)."""
    rows, columns = (-(-n // side) * side for n in x.shape)
    full = torch.zeros(rows, columns, dtype=x.dtype)
    full[: x.shape[0], : x.shape[1]] = x
    return full.view(rows // side, side, columns // side, side)


def in_blocks(x, scale_of, scaled, side=128):
    """What a formula makes of x: scale_of(amax), then scaled(x, amax, scale)."""
    view = blocks_of(x, side)
    amax = view.abs().float().amax(dim=(1, 3), keepdim=True)
    scale = scale_of(amax)
    q = scaled(view, amax, scale).to(E4M3)
    q = q.view(view.shape[0] * side, view.shape[2] * side)
    return q[: x.shape[0], : x.shape[1]].contiguous(), scale.flatten()


def ceil_by_bits(s):
    """As DeepGEMM has it later, but for what is not finite."""
    up = ((s.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(F32)
    return torch.where(torch.isfinite(s), up, s)


def ceil_by_log(s):
    """As vLLM 0.33 has it, after DeepGEMM dd6ed14a."""
    return torch.pow(2.0, torch.ceil(torch.log2(s.abs())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_round(kind, dtype):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide, scales = cast(kind, ROUND, every.view(256, 256), F32)
    assert same(wide, every.view(256, 256).float()) and not len(scales)
    seeded = torch.Generator().manual_seed(1)
    some = torch.randint(-(1 << 31), 1 << 31, (1000, 1001), generator=seeded)
    some = some.to(torch.int32).view(F32)
    assert same(cast(kind, ROUND, some, dtype)[0], some.to(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_fp8_block(kind, dtype):
    """As per_block_cast_to_fp8 of DeepGEMM dd6ed14a and of vLLM 0.33, without ue8m0."""
    x = weights(dtype)
    q, s = in_blocks(x, lambda a: a.clamp(1e-4) / 448, lambda x, a, s: x * (1.0 / s))
    ours, scales = cast(kind, BLOCK, x, E4M3)
    assert same(ours, q) and same(scales, s)
    q, s = in_blocks(x, lambda a: a.clamp(1e-4) / 448, lambda x, a, s: x * (1.0 / s), side=64)
    ours, scales = cast(kind, BLOCK, x, E4M3, block=(64, 64))
    assert same(ours, q) and same(scales, s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_fp8_block_pow2(kind, dtype):
    """As the same with ue8m0, rounded up by the bits."""
    x = weights(dtype)
    q, s = in_blocks(x, lambda a: ceil_by_bits(a.clamp(1e-4) / 448), lambda x, a, s: x * (1.0 / s))
    ours, scales = cast(kind, POW2, x, E4M3)
    assert same(ours, q) and same(scales, s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_fp8_channel(kind, dtype):
    """As vLLM's kernel dynamic_per_token_scaled_fp8_quant, and its online channels, for numbers."""
    x = weights(dtype)
    scale = (x.abs().amax(dim=-1, keepdim=True).float() / 448).clamp(min=1 / (448 * 512))
    ours, scales = cast(kind, CHANNEL, x, E4M3)
    assert same(ours, (x.float() / scale).clamp(-448, 448).to(E4M3))
    assert same(scales, scale.flatten())


# Which bits others have, where elements lie at the middles of two values and beside them.


def middles(rows=1024, columns=1024):
    """Each element is such a middle times a scale of its rows, but for one that is the largest."""
    generator = torch.Generator().manual_seed(2)
    values = torch.arange(8, 0x7F, dtype=torch.uint8).view(E4M3).float()
    middle = (values[1:] + values[:-1]) / 2
    amax = torch.rand(rows // 128, 1, generator=generator).repeat_interleave(128, 0) + 1
    chosen = torch.randint(0, len(middle), (rows, columns), generator=generator)
    x = middle[chosen] * (amax / 448)
    x[:, ::128] = amax
    return x


MANY = middles()

OTHERS = {
    "DeepGEMM's first per_block_cast_to_fp8":
        (lambda a: a.clamp(1e-4) / 448, lambda x, a, s: x * (448.0 / a.clamp(1e-4))),
    "scaled_fp8_blockwise of verl 0.7 and NeMo RL":
        (lambda a: torch.reciprocal(448.0 / a), lambda x, a, s: (x * (448.0 / a)).clamp(-448, 448)),
    "vLLM's QuantFP8 of groups":
        (lambda a: a.clamp(1e-4) / 448, lambda x, a, s: (x / s).clamp(-448, 448)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_part(name):
    """Not our bits, and next to them: no value is further than one step away."""
    theirs, scale = in_blocks(MANY, *OTHERS[name])
    ours, scales = cast("plain", BLOCK, MANY, E4M3)
    assert not same(ours, theirs)
    apart = (bits(ours).int() & 0x7F) - (bits(theirs).int() & 0x7F)
    assert apart.abs().max() == 1
    assert ((scale - scales).abs() <= scales * 2**-22).all()


def test_power_of_two_by_logarithm_parts():
    """Just above a power of two the logarithm in F32 is that of the power: a scale too small."""
    x = torch.full((2, 128), 448 * 2.0**-16).nextafter(torch.tensor(1.0))
    assert cast("plain", POW2, x, E4M3)[1].tolist() == [2.0**-15]
    assert in_blocks(x, lambda a: ceil_by_log(a / 448), lambda x, a, s: x * (1 / s))[1] == 2.0**-16
    q, s = in_blocks(MANY, lambda a: ceil_by_log(a.clamp(1e-4) / 448), lambda x, a, s: x * (1 / s))
    ours, scales = cast("plain", POW2, MANY, E4M3)
    assert same(ours, q) and same(scales, s)


def test_channel_by_reciprocal_parts():
    """vLLM's QuantFP8 without its kernels."""
    scale = (MANY.abs().amax(dim=-1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    theirs = (MANY * scale.reciprocal()).clamp(-448, 448).to(E4M3)
    ours, scales = cast("plain", CHANNEL, MANY, E4M3)
    assert same(scales, scale.flatten()) and not same(ours, theirs)
