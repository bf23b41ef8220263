"""Graphs that almost match a pass's pattern, or use an op's edge cases, against unoptimized ONNX
Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices
from tests.models.oracle import expected

_RNG = np.random.default_rng(0)
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text format, its initializers, and one or two sets of inputs."""

    text: str
    constants: Mapping[str, object] = field(default_factory=dict)
    feeds: Mapping[str, Array] = field(default_factory=dict)
    opset: int = 18
    others: Mapping[str, Array] = field(default_factory=dict)


def _random(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _f32(value: float) -> Array:
    return np.asarray(value, np.float32)


def _texts(*values: str) -> Array:
    return np.array(values, object)


def _of_size(n: int) -> dict[str, Array]:
    return {"x": _random(n)}


def _ones(n: int) -> Array:
    return np.linspace(0.01, 0.02, n, dtype=np.float32)


def _bytes(*shape: int) -> Array:
    return _RNG.integers(0, 9, shape).astype(np.uint8)


_LIMITS = {"five": _ints(5), "three": _ints(3), "zero": _ints(0)}
_SIZE = "g (float[N] x) => (int64[1] y) { s=Shape(x) "
_GELU = {
    k: _f32(v)
    for k, v in {
        "three": 3,
        "cu": 0.044715,
        "sc": np.sqrt(2 / np.pi),
        "one": 1,
        "half": 0.5,
    }.items()
}
_TANH = "k=Mul(c,cu) q=Add(x,k) t=Mul(q,sc) e=Tanh(t) o=Add(e,one) p=Mul(x,half) y=Mul(p,o) }"
_NORM = "m=ReduceMean(x,ax) d=Sub(x,m) p=Pow(d,two) v=ReduceMean(p,ax) a=Add(v,eps) s=Sqrt(a) "
_WIDER = "g (float[B,S,8] x) => (float[A,B,S,8] y) {"
_NUMBERS = {"two": _f32(2), "eps": _f32(1e-5), "ax": _ints(-1)}
_ATTENTION = """g (float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v, bool[B,1,S,T] c1,
  bool[B,1,1,T] c2) => (float[B,S,2,8] y) {{
  kt=Transpose<perm=[0,1,3,2]>(k) s=MatMul(q,kt) s1=Mul(s,sc) {masks} p=Softmax<axis=-1>(m)
  o=MatMul(p,v) y=Transpose<perm=[0,2,1,3]>(o) }}"""
_MASKED = {"sc": _f32(0.3), "lo": _f32(_LOWEST), "ze": _f32(0)}
_HEADS = {
    **{n: _random(1, 2, 4, 8) for n in "qkv"},
    "c1": np.tril(np.ones((4, 4), bool))[None, None],
    "c2": np.array([0, 0, 1, 1], bool)[None, None, None],
}
_TWICE = "g (float16[N] x) => (float16[N] y) { a=Mul(x,c) y=Mul(a,c) }"
_SIGNS = {"p": _f32(0.0), "n": _f32(-0.0), "one": _f32(1)}

CASES = {
    "dims divide towards 0": Case(
        _SIZE + "n=Neg(s) y=Div(n,two) }", {"two": _ints(2)}, _of_size(3)
    ),
    "a difference of dims divides towards 0": Case(
        _SIZE + "n=Sub(one,s) y=Div(n,two) }", {"two": _ints(2), "one": _ints(1)}, _of_size(2)
    ),
    "the remainder of a dim by a negative number": Case(
        _SIZE + "m=Mod(s,three) y=Div(m,two) }",
        {"two": _ints(2), "three": _ints(-3)},
        _of_size(2),
    ),
    "the remainder of a dim, as in C": Case(
        _SIZE + "y=Mod<fmod=1>(s,two) }", {"two": _ints(2)}, _of_size(3)
    ),
    "the least of a difference of dims": Case(
        _SIZE + "d=Sub(s,five) m=Min(d,three) y=Max(m,zero) }", _LIMITS, _of_size(2)
    ),
    "the sign of the least of a difference of dims": Case(
        "g (float[N] x) => (bool[1] y) { s=Shape(x) d=Sub(s,five) m=Min(d,three) y=Less(m,zero) }",
        _LIMITS,
        _of_size(2),
    ),
    "counting down to a dim": Case(
        "g (float[N] x) => (int64[1] y) { s=Shape(x) n=Squeeze(s) r=Range(a,n,b) y=Shape(r) }",
        {"a": np.int64(5), "b": np.int64(2)},
        _of_size(1),
    ),
    "rows that broadcast where there are none": Case(
        "g (float[N] x, float[M] z) => (float[K] y, int64[1] s) { y=Add(x,z) s=Shape(y) }",
        {},
        {"x": _random(0), "z": _random(1)},
        others={"x": _random(1), "z": _random(3)},
    ),
    "windows of a dim": Case(
        """g (float[1,1,N] x) => (int64[3] y) {
        c=Conv(x,w) z=Slice(c,zero,end,axis) y=Shape(z) }""",
        {"w": _random(1, 1, 3), "zero": _ints(0), "end": _ints(-2), "axis": _ints(2)},
        {"x": _random(1, 1, 3)},
        others={"x": _random(1, 1, 9)},
    ),
    "a scale for each of a number of rows": Case(
        """g (float[N,4] x, float[N] s, uint8[N] z) => (uint8[N,4] y) {
        y=QuantizeLinear<axis=0>(x,s,z) }""",
        {},
        {"x": _random(1, 4), "s": _ones(1), "z": np.full(1, 9, np.uint8)},
        others={"x": _random(3, 4), "s": _ones(3), "z": np.full(3, 9, np.uint8)},
    ),
    "boxes of a number of corners": Case(
        "g (float[A,B,C] x, float[A,D,B] s) => (int64[M,3] y) { y=NonMaxSuppression(x,s,most) }",
        {"most": _ints(2)},
        {"x": _random(1, 3, 4), "s": _random(1, 2, 3)},
        others={"x": _random(2, 5, 4), "s": _random(2, 1, 5)},
    ),
    "boxes that are inside out, and without end": Case(
        """g (float[A,B,4] x, float[A,C,B] s) => (int64[M,3] y) {
        y=NonMaxSuppression<center_point_box=1>(x,s,most,share) }""",
        {"most": _ints(9), "share": _f32(0.5)},
        {
            "x": np.array(
                [[[1, 1, 2, 2], [1, 1, -2, 2], [1, 1, np.inf, 2], [0, 1, np.inf, 2]]], np.float32
            ),
            "s": _random(1, 2, 4),
        },
    ),
    "a signal that may be complex": Case(
        "g (float[B,L,C] x) => (float[B,L,2] y) { y=DFT<axis=1>(x) }",
        {},
        {"x": _random(2, 8, 1)},
        others={"x": _random(1, 5, 2)},
    ),
    "a window as long as a dim": Case(
        """g (float[B,16,1] x, float[N] w) => (float[B,M,K,2] y, float[B,M,K,2] z) {
        s=Shape(w) n=Squeeze(s) y=STFT(x,step,w,n) z=STFT(x,step,,n) }""",
        {"step": np.int64(2)},
        {"x": _random(2, 16, 1), "w": _random(4)},
        others={"x": _random(1, 16, 1), "w": _random(8)},
    ),
    "bands of as many points as a dim": Case(
        """g (float[N] x) => (float[M,3] y) {
        s=Shape(x) n=Squeeze(s) y=MelWeightMatrix(bands,n,rate,low,high) }""",
        {"bands": np.int64(3), "rate": np.int64(9), "low": _f32(0), "high": _f32(4)},
        _of_size(16),
        others=_of_size(21),
    ),
    "columns of an image as large as dims": Case(
        "g (float[1,8,9] x, float[H,W] i) => (float[1,2,H,W] y) { s=Shape(i) y=Col2Im(x,s,k) }",
        {"k": _ints(2, 2)},
        {"x": _random(1, 8, 9), "i": _random(4, 4)},
        others={"x": _random(1, 8, 9), "i": _random(2, 10)},
    ),
    "features of which there may be more": Case(
        """g (float[A,B] x, float[A,C] z) => (float[A,5] y) {
        y=ai.onnx.ml.FeatureVectorizer<inputdimensions=[2,3]>(x,z) }""",
        {},
        {"x": _random(2, 2), "z": _random(2, 3)},
        others={"x": _random(1, 4), "z": _random(1, 1)},
    ),
    "a product of rows with a scale": Case(
        """g (uint8[M,4] a, float[N] s, uint8[N] z, uint8[4,3] b) => (uint8[M,3] y) {
        y=QLinearMatMul(a,s,z,b,t,u,t,u) }""",
        {"t": _f32(0.5), "u": np.uint8(7)},
        {"a": _bytes(2, 4), "s": _ones(1), "z": np.full(1, 5, np.uint8), "b": _bytes(4, 3)},
        others={"a": _bytes(3, 4), "s": _ones(1), "z": np.full(1, 5, np.uint8), "b": _bytes(4, 3)},
    ),
    "half of what a rotation turns is needed": Case(
        """g (float[B,4,S,8] x, float[B,1,S,8] c, float[B,1,S,8] s) => (float[B,4,S,8] y,
        float[B,4,S,4] w) { x1,x2=Split<axis=-1,num_outputs=2>(x) z=Neg(x2)
        t=Concat<axis=-1>(z,x1) a=Mul(x,c) b=Mul(t,s) y=Add(a,b) w=Sin(x1) }""",
        {},
        {"x": _random(2, 4, 3, 8), "c": _random(2, 1, 3, 8), "s": _random(2, 1, 3, 8)},
    ),
    "the cube in a GELU is an output": Case(
        "g (float[N] x) => (float[N] y, float[N] c) { c=Pow(x,three) " + _TANH, _GELU, _of_size(9)
    ),
    "the cube in a GELU is needed": Case(
        "g (float[N] x) => (float[N] y, float[N] z) { c=Pow(x,three) z=Sin(c) " + _TANH,
        _GELU,
        _of_size(9),
    ),
    "an epsilon of more axes": Case(
        _WIDER + _NORM + "y=Div(d,s) }",
        {**_NUMBERS, "eps": np.full((1, 1, 1, 1), 1e-5, np.float32)},
        {"x": _random(2, 3, 8)},
    ),
    "an exponent of more axes": Case(
        _WIDER + _NORM + "y=Div(d,s) }",
        {**_NUMBERS, "two": np.full((1, 1, 1, 1), 2, np.float32)},
        {"x": _random(2, 3, 8)},
    ),
    "a normalised vector times its deviation": Case(
        "g (float[8] x) => (float[8] y) {" + _NORM + "n=Div(d,s) y=Mul(n,d) }",
        _NUMBERS,
        _of_size(8),
    ),
    "a reciprocal root of more axes": Case(
        _WIDER + "p=Mul(x,x) v=ReduceMean(p,ax) a=Add(v,eps) s=Sqrt(a) n=Div(one,s) y=Mul(x,n) }",
        {**_NUMBERS, "one": np.ones((1, 1, 1, 1), np.float32)},
        {"x": _random(2, 3, 8)},
    ),
    "two masks that choose": Case(
        _ATTENTION.format(masks="w1=Where(c1,s1,lo) m=Where(c2,w1,lo)"), _MASKED, _HEADS
    ),
    "a mask that is added, and one that chooses": Case(
        _ATTENTION.format(masks="ad=Where(c2,ze,lo) w1=Add(s1,ad) m=Where(c1,w1,lo)"),
        _MASKED,
        _HEADS,
    ),
    "large factors of float16": Case(
        _TWICE, {"c": np.float16(1e4)}, {"x": np.array([1e-5, 1e-4], np.float16)}
    ),
    "small factors of float16": Case(
        _TWICE, {"c": np.float16(1e-4)}, {"x": np.array([60000, -40000], np.float16)}
    ),
    "two casts, and what is too large": Case(
        """g (float16[N] x) => (float[N] y) {
        a=Cast<to=1>(x) b=Cast<to=17,saturate=0>(a) y=Cast<to=1>(b) }""",
        {},
        {"x": np.array([1, 1000, -1000], np.float16)},
        19,
    ),
    "a choice of 0 and -0": Case(
        "g (float[N] x, bool[N] b) => (float[N] y) { w=Where(b,p,n) y=Div(x,w) }",
        _SIGNS,
        {"x": np.ones(2, np.float32), "b": np.array([True, False])},
    ),
    "products with 0 and -0": Case(
        """g (float[N] x) => (float[N] y) {
        a=Mul(x,p) b=Mul(x,n) c=Div(one,a) d=Div(one,b) y=Sub(c,d) }""",
        _SIGNS,
        {"x": np.ones(2, np.float32)},
    ),
    "row numbers that a slice leaves out": Case(
        "g (float[N] n) => (float[M,3] y) { s=Shape(n) i=Slice(rows,z,s,z) y=Gather(tab,i) }",
        {"rows": np.arange(10), "tab": _random(6, 3), "z": _ints(0)},
        {"n": _random(4)},
    ),
    "indices in rows": Case(
        """g (float[N,1] n) => (float[M,1] y) { x=Concat<axis=0>(n,n) sp=Shape(n)
        b0=Slice(sp,zero,one) b=Squeeze(b0) ra=Range(a,b,c) rr=Unsqueeze(ra,one) ss=Shape(rr)
        zz=Expand(zero,ss) i=Concat<axis=0>(rr,zz) y=GatherND(x,i) }""",
        {"a": np.int64(0), "c": np.int64(1), "one": _ints(1), "zero": _ints(0)},
        {"n": _random(3, 1)},
    ),
    "counting past a small integer": Case(
        """g (float[N] n) => (bool[M] y) {
        s=Shape(n) b=Squeeze(s) ra=Range(a,b,c) q=Cast<to=3>(ra) y=GreaterOrEqual(q,z) }""",
        {"a": np.int64(0), "c": np.int64(1), "z": np.int8(0)},
        {"n": _random(200)},
    ),
    "keys and values by head, and a bias": Case(
        """g (float[B,S,16] q, float[B,4,T,4] k, float[B,4,T,4] v) => (float[B,S,16] y) {
        y=com.microsoft.MultiHeadAttention<num_heads=4>(q,k,v,b) }""",
        {"b": _random(48)},
        {"q": _random(2, 3, 16), "k": _random(2, 4, 5, 4), "v": _random(2, 4, 5, 4)},
    ),
    "ends and starts as a mask": Case(
        """g (float[B,S,16] x, int32[BB] m) => (float[B,S,16] y) {
        y=com.microsoft.Attention<num_heads=4>(x,w,b,m) }""",
        {"w": _random(16, 48), "b": _random(48)},
        {"x": _random(2, 5, 16), "m": np.array([5, 4, 1, 0], np.int32)},
    ),
    "the logarithm of a sum of integers": Case(
        "g (int32[5] x) => (int32[1] y) { y=ReduceLogSumExp(x) }",
        {},
        {"x": np.array([-4, 4, -3, 3, -3], np.int32)},
    ),
    "a sum that wraps": Case(
        "g (int32[N] x, int32[N] z) => (int64[N] y) { a=Add(x,z) y=Cast<to=7>(a) }",
        {},
        {"x": np.array([2**31 - 1, 5], np.int32), "z": np.array([100, 1], np.int32)},
    ),
    "a difference that wraps": Case(
        "g (int32[N] x, int32[N] z) => (bool[N] y) { a=Sub(x,z) y=Greater(a,x) }",
        {},
        {"x": np.array([-(2**31), 5], np.int32), "z": np.array([2, 1], np.int32)},
    ),
    "the size of the least integer": Case(
        "g (int32[N] x) => (bool[N] y, bool[N] w) { a=Abs(x) y=Less(a,z) b=Neg(x) w=Less(b,z) }",
        {"z": np.int32(0)},
        {"x": np.array([-(2**31), -5, 5], np.int32)},
    ),
    "floats that are rounded to 16 bits": Case(
        """g (float[N] x) => (float[N] y, float[N] z) {
        r=Relu(x) h=Cast<to=10>(r) f=Cast<to=1>(h) y=Mul(f,x)
        b=Cast<to=16>(x) z=Cast<to=1>(b) }""",
        {},
        {"x": np.array([1.0001, 3.3333, 70000, -7e-6], np.float32)},
    ),
    "a slice backwards from before the first": Case(
        "g (float[N,M] x) => (float[N,P] y) { y=Slice(x,s,e,a,m) }",
        {"s": _ints(-4), "e": _ints(-9), "a": _ints(1), "m": _ints(-2)},
        {"x": _random(3, 2)},
        others={"x": _random(2, 5)},
    ),
    "unsigned numbers that shrink": Case(
        "g (uint8[N] x) => (uint8[N] y) { y=Shrink<lambd=3.0,bias=1.0>(x) }",
        {},
        {"x": np.array([0, 1, 3, 4, 9, 100], np.uint8)},
        9,
    ),
    "the nearest of opset 10": Case(
        'g (float[1,1,A,B] x) => (float[1,1,C,D] y) { y=Resize<mode="nearest">(x,s) }',
        {"s": np.array([1, 1, 0.6, 1.5], np.float32)},
        {"x": _random(1, 1, 7, 4)},
        10,
    ),
    "the nearest of TensorFlow": Case(
        """g (float[1,1,A,B] x) => (float[1,1,C,D] y) { y=Resize<nearest_mode="floor",
        coordinate_transformation_mode="tf_half_pixel_for_nn">(x,r,s) }""",
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 0.6, 1.5], np.float32)},
        {"x": _random(1, 1, 7, 4)},
        11,
    ),
    "scales whose quotients are whole in float32": Case(
        """g (float[1,1,A,B] x) => (float[1,1,C,D] y, float[1,1,C,D] z) {
        y=Resize<nearest_mode="floor",coordinate_transformation_mode="asymmetric">(x,,s)
        z=Resize<nearest_mode="floor">(x,,s) }""",
        {"s": np.array([1, 1, 0.6, 0.2], np.float32)},
        {"x": _random(1, 1, 18, 20)},
        others={"x": _random(1, 1, 9, 26)},
    ),
    "one sample of an axis, as PyTorch had it": Case(
        """g (float[1,1,A,B] x) => (float[1,1,C,D] y) {
        y=Resize<mode="cubic",coordinate_transformation_mode="pytorch_half_pixel">(x,,,s) }""",
        {"s": _ints(1, 1, 3, 1)},
        {"x": _random(1, 1, 5, 4)},
    ),
    "pooling of what has no known rank": Case(
        """g (float[] x) => (float[] y, float[] z) { y=GlobalLpPool<p=3>(x)
        a,i=MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)
        z=MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(a,i) }""",
        {},
        {"x": _random(1, 2, 4, 6)},
        others={"x": _random(2, 3, 6, 4)},
    ),
    "bounds of float16": Case(
        "g (float16[N] x) => (float16[N] y) { y=Clip<min=-1.0,max=0.5>(x) }",
        {},
        {"x": _random(5).astype(np.float16)},
        7,
    ),
    "a grid for one plane": Case(
        """g (float[N,2,3] t) => (float[N,H,W,2] y, float[N,H,W,2] z) {
        y=AffineGrid(t,s) z=AffineGrid<align_corners=1>(t,s) }""",
        {"s": _ints(1, 1, 3, 4)},
        {"t": _random(1, 2, 3)},
        20,
    ),
    "a grid whose sizes are of no known number": Case(
        "g (float[N,2,3] t, int64[K] s) => (float[N,H,W,2] y) { y=AffineGrid(t,s) }",
        {},
        {"t": _random(1, 2, 3), "s": _ints(1, 1, 3, 4)},
        20,
        {"t": _random(2, 2, 3), "s": _ints(2, 1, 1, 4)},
    ),
    "a scan of rows of several lengths": Case(
        """g (int64[2] n, float[2,3] s, float[2,T,3] x) => (float[2,3] y, float[2,T,3] z) {
        y,z=Scan<num_scan_inputs=1, body = b (float[3] u, float[3] v) => (float[3] w, float[3] o) {
        w=Add(u,v) o=Mul(w,w) }>(n,s,x) }""",
        {},
        {"n": _ints(4, 2), "s": _random(2, 3), "x": _random(2, 4, 3)},
        8,
    ),
    "cubic samples at a border": Case(
        """g (float[2,3,3,4] x, float[2,4,3,2] g) => (float[2,3,4,3] y) {
        y=GridSample<mode="bicubic",padding_mode="border",align_corners=1>(x,g) }""",
        {},
        {"x": _random(2, 3, 3, 4), "g": _RNG.uniform(-1.5, 1.5, (2, 4, 3, 2)).astype(np.float32)},
        16,
    ),
    "texts that are compared": Case(
        """g (string[N] x, string[N] z) => (bool[N] y, float[N] f, string[N] w) {
        a=Equal(x,one) y=Not(a) b=Equal(x,cat) f=Cast<to=1>(b) c=Equal(x,z) w=Where(c,one,cat) }""",
        {"one": _texts("1"), "cat": _texts("cat")},
        {"x": _texts("1", "cat", "1.0"), "z": _texts("1", "dog", "cat")},
        19,
    ),
    "texts that are longer than those before": Case(
        """g (string[N] x, string[M] z) => (string[N] y, string[N] w) {
        y=ScatterElements(x,i,z) w=ScatterND(x,j,z) }""",
        {"i": _ints(2, -3), "j": _ints(2, -3)[:, None]},
        {"x": _texts("a", "b", "c"), "z": _texts("longer", "")},
    ),
    "texts, each once": Case(
        """g (string[A,B] x) => (string[C] y, int64[C] f, int64[D] i, int64[C] n, string[A,E] z) {
        y,f,i,n=Unique<sorted=0>(x) z=Unique<axis=1>(x) }""",
        {},
        {"x": np.stack([_texts("é", "a", "é"), _texts("b", "", "b")])},
    ),
    "remainders of large integers": Case(
        "g (uint32[N] x, int32[N] z) => (uint32[N] y, int32[N] w) { y=Mod(x,m) w=Mod(z,n) }",
        {"m": np.uint32(2**32 - 5), "n": np.int32(2**31 - 1)},
        {"x": np.array([10, 2**32 - 1], np.uint32), "z": np.array([5, -5], np.int32)},
    ),
}


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("name", CASES)
def test_near_miss_matches_unoptimized_onnxruntime(name: str, device: DeviceInfo) -> None:
    case = CASES[name]
    domains = f'["" : {case.opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3]'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {domains}>{case.text}")
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), k) for k, v in case.constants.items()
    )
    with clrt.load(proto, device=device.index) as model:
        for feeds in [dict(f) for f in (case.feeds, case.others) if f]:
            found = model.run(feeds)
            for output, wanted in expected(proto, feeds, optimised=False).items():
                limit = 2e-3 if wanted.dtype == np.float16 else 1e-5
                actual = np.asarray(found[output])
                if wanted.dtype == object:
                    assert actual.tolist() == wanted.tolist()
                    continue
                np.testing.assert_allclose(actual, wanted, rtol=limit, atol=limit, strict=True)
