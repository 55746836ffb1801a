"""The C structures of csrc/ and the signatures of its functions."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int64, c_void_p
from typing import ClassVar


class Linear(ctypes.Structure):
    """linear.h"""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("gate", c_int64),
        ("format", c_int64),
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
        ("key_page_stride", c_int64),
        ("value_page_stride", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("query_stride", c_int64),
        ("window", c_int64),
        ("scaling", c_float),
        ("softcap", c_float),
    ]


class DecoderLayer(ctypes.Structure):
    """decoder.h"""

    _fields_: ClassVar = [
        ("qkv", Linear),
        ("attention_out", Linear),
        ("gate_up", Linear),
        ("mlp_out", Linear),
        ("input_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("attention_out_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("mlp_out_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("attention", AttentionLayer),
        ("rotary_dim", c_int64),
        ("norm_eps", c_float),
    ]


class Decoder(ctypes.Structure):
    """decoder.h"""

    _fields_: ClassVar = [
        ("layers", POINTER(DecoderLayer)),
        ("head", Linear),
        ("final_norm", c_void_p),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("final_norm_eps", c_float),
    ]


class Step(ctypes.Structure):
    """decoder.h"""

    _fields_: ClassVar = [
        ("batch", Batch),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("last_rows", c_void_p),
        ("num_tokens", c_int64),
        ("num_last", c_int64),
    ]


class Workspace(ctypes.Structure):
    """decoder.h"""

    _fields_: ClassVar = [
        ("hidden", c_void_p),
        ("other", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("inner", c_void_p),
        ("scratch", c_void_p),
        ("partials", c_void_p),
        ("logits", c_void_p),
        ("counters", c_void_p),
        ("thread_floats", c_int64),
    ]


CACHE_LINE = 64
"""team.h: each counter has one of its own."""


class Constant(ctypes.Structure):
    """constants.c"""

    _fields_: ClassVar = [("name", c_char_p), ("of", c_char_p), ("value", c_int64)]


def declare(library: ctypes.CDLL) -> None:
    """Sets argument and result types, without which ctypes would cut pointers to 32 bits."""
    library.panel_width.argtypes, library.panel_width.restype = [], c_int64
    library.run_linear.argtypes = [POINTER(Linear), c_void_p, c_int64, c_void_p, c_int64]
    library.attention_scratch_floats.argtypes = [POINTER(AttentionLayer)]
    library.attention_scratch_floats.restype = c_int64
    library.attention_partial_floats.argtypes = [POINTER(AttentionLayer), POINTER(Batch)]
    library.attention_partial_floats.restype = c_int64
    library.run_attention.argtypes = [
        POINTER(AttentionLayer), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_void_p, c_int64,
    ]  # fmt: skip
    library.decoder_scratch_floats.argtypes, library.decoder_scratch_floats.restype = [POINTER(Decoder)], c_int64
    library.decoder_counter_bytes.argtypes, library.decoder_counter_bytes.restype = [POINTER(Decoder)], c_int64
    library.kernel_constant.argtypes, library.kernel_constant.restype = [c_int64], POINTER(Constant)
    library.decoder_partial_floats.argtypes = [POINTER(Decoder), POINTER(Batch)]
    library.decoder_partial_floats.restype = c_int64
    library.run_decoder.argtypes = [POINTER(Decoder), POINTER(Step), POINTER(Workspace), c_int64]
    for name in ("run_linear", "run_attention", "run_decoder"):
        getattr(library, name).restype = None
