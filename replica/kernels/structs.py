"""The C structures of csrc/ and the signatures of its functions."""

import ctypes
from ctypes import POINTER, c_float, c_int64, c_void_p
from typing import ClassVar


class Linear(ctypes.Structure):
    """linear.h"""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("gate", c_int64),
    ]


class Batch(ctypes.Structure):
    """attention.h"""

    _fields_: ClassVar = [
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("tables", c_void_p),
        ("table_starts", c_void_p),
        ("num_requests", c_int64),
        ("page_size", c_int64),
    ]


class AttentionLayer(ctypes.Structure):
    """attention.h"""

    _fields_: ClassVar = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("query_stride", c_int64),
        ("window", c_int64),
        ("scaling", c_float),
        ("softcap", c_float),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Sets argument and result types, without which ctypes would cut pointers to 32 bits."""
    library.panel_width.argtypes, library.panel_width.restype = [], c_int64
    library.pack_weight.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64]
    library.run_linear.argtypes = [POINTER(Linear), c_void_p, c_int64, c_void_p, c_int64]
    library.attention_scratch_floats.argtypes = [POINTER(AttentionLayer)]
    library.attention_scratch_floats.restype = c_int64
    library.run_attention.argtypes = [
        POINTER(AttentionLayer), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_int64,
    ]  # fmt: skip
    for name in ("pack_weight", "run_linear", "run_attention"):
        getattr(library, name).restype = None
