# SPDX-License-Identifier: Apache-2.0
"""Types of elements: names as safetensors has them, and what torch and numpy call them."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from .errors import Invalid


class DType(NamedTuple):
    """``code`` is enum thc_dtype, ``bits`` those of one element."""

    name: str
    code: int
    bits: int
    torch: Optional[str] = None
    numpy: Optional[str] = None  # as numpy's dtype.name
    format: Optional[str] = None  # of the buffer protocol


_ROWS: Tuple[Tuple[str, int, Optional[str], Optional[str], Optional[str]], ...] = (
    ("U8", 8, "uint8", "uint8", "B"),
    ("I8", 8, "int8", "int8", "b"),
    ("BOOL", 8, "bool", "bool", "?"),
    ("I16", 16, "int16", "int16", "h"),
    ("U16", 16, "uint16", "uint16", "H"),
    ("F16", 16, "float16", "float16", "e"),
    ("BF16", 16, "bfloat16", "bfloat16", None),
    ("I32", 32, "int32", "int32", "i"),
    ("U32", 32, "uint32", "uint32", "I"),
    ("F32", 32, "float32", "float32", "f"),
    ("I64", 64, "int64", "int64", "q"),
    ("U64", 64, "uint64", "uint64", "Q"),
    ("F64", 64, "float64", "float64", "d"),
    ("F8_E4M3", 8, "float8_e4m3fn", "float8_e4m3fn", None),
    ("F8_E5M2", 8, "float8_e5m2", "float8_e5m2", None),
    ("C64", 64, "complex64", "complex64", None),
    ("F8_E8M0", 8, "float8_e8m0fnu", "float8_e8m0fnu", None),
    ("F8_E4M3FNUZ", 8, "float8_e4m3fnuz", "float8_e4m3fnuz", None),
    ("F8_E5M2FNUZ", 8, "float8_e5m2fnuz", "float8_e5m2fnuz", None),
    ("F4", 4, None, None, None),
    ("F6_E2M3", 6, None, None, None),
    ("F6_E3M2", 6, None, None, None),
)
ALL = tuple(DType(row[0], code, *row[1:]) for code, row in enumerate(_ROWS, 1))
BY_NAME: Dict[str, DType] = {kind.name: kind for kind in ALL}
BY_CODE: Dict[int, DType] = {kind.code: kind for kind in ALL}
_BY_TORCH = {kind.torch: kind for kind in ALL if kind.torch}
_BY_NUMPY = {kind.numpy: kind for kind in ALL if kind.numpy}
# What memoryviews and __cuda_array_interface__ say, without the byte order.
_BY_FORMAT = {kind.format: kind for kind in ALL if kind.format}
_BY_FORMAT.update({"c": BY_NAME["U8"], "l": BY_NAME["I64"], "L": BY_NAME["U64"]})


def of(dtype: Any) -> DType:
    """The type that this is: a name ("BF16", "bfloat16"), or a dtype of torch or numpy."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    text = text[6:] if text.startswith("torch.") else text
    kind = BY_NAME.get(text.upper()) or _BY_TORCH.get(text) or _BY_NUMPY.get(text)
    if kind is None:
        raise Invalid(f"dtype: {dtype!r} is no type that tensors of TensorHub can have")
    return kind


def of_format(text: str) -> DType:
    """The type of a buffer's format, such as "f" or "<i4"."""
    kind = _BY_FORMAT.get(text.lstrip("@=<|") or "B") or _of_typestr(text)
    if kind is None:
        raise Invalid(f"dtype: a buffer of format {text!r} is no tensor of TensorHub")
    return kind


def _of_typestr(text: str) -> Optional[DType]:
    """As __array_interface__ writes it: byte order, letter, bytes of one element."""
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
    if len(text) < 3 or text[0] not in "<|=" or text[1] not in kinds or not text[2:].isdigit():
        return None
    word = kinds[text[1]]
    return _BY_NUMPY.get(word if word == "bool" else f"{word}{int(text[2:]) * 8}")
