"""Sizes of memory as people write them."""

import re

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_bytes(name: str, value: str | int) -> int:
    """`2GiB`, `512 MB`, `1.5g` or a plain number of bytes. Raises ValueError that names the field."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    unit = (_UNITS | _BINARY_UNITS).get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{name} must be a size such as 2GiB or 500MB, got {value!r}")
    return int(float(match[1]) * unit)


def format_bytes(count: int) -> str:
    """Three digits with a binary unit, e.g. `1.95 GiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
