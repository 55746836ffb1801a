"""Puts together what a parser of tool calls gives, as a client does."""

from cluster.api.tool_calls import ParsedText, ToolCallParser


def read_pieces(parser: ToolCallParser, *pieces: str, is_cut: bool = False) -> ParsedText:
    """All that the pieces of one answer gave. is_cut: the answer ends at its limit."""
    joined = ParsedText()
    for number, piece in enumerate(pieces):
        part = parser.feed(piece, final=number == len(pieces) - 1, is_cut=is_cut)
        joined.content += part.content
        for call in part.calls:
            joined.add_call(call)
    return joined
