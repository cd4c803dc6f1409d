"""Dealing the parts to nodes that each keep their own share: arithmetic only."""

from collections.abc import Sequence

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.manifest import NodeShare
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.text.parts.part import Part, Piece, sizes_of


def deal(sizes: Sequence[int], nodes: int) -> list[list[int]]:
    """Numbers of the parts of each node, in order; the nodes' bytes are as even as can be.

    The largest part left goes to the node with the fewest bytes so far, the first of those
    (longest processing time first: never more than 4/3 of the best that can be).
    """
    held: list[list[int]] = [[] for _ in range(nodes)]
    bytes_of = [0] * nodes
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        node = min(range(nodes), key=lambda node: (bytes_of[node], len(held[node]), node))
        held[node].append(number)
        bytes_of[node] += sizes[number]
    return [sorted(numbers) for numbers in held]


def own_share(
    parts: Sequence[Part], *, nodes: int | None, rank: int | None
) -> tuple[tuple[Part, ...], NodeShare | None]:
    """This node's parts in their order, and which share that is; all where there are no nodes.

    Raises:
        UsageError: there are fewer parts than nodes.
    """
    if nodes is None or rank is None:
        return tuple(parts), None
    if len(parts) < nodes:
        raise UsageError(
            f"{len(parts)} parts for {nodes} nodes: some would hold nothing. Lower --nodes, "
            "--min-part-size or --part-size, or cut the files into smaller ones."
        )
    listed = "\n".join(_line(part) for part in parts)
    share = NodeShare(rank=rank, nodes=nodes, sources=content_hash(listed.encode()))
    numbers = deal(sizes_of(parts), nodes)[rank]
    return tuple(Part(own, parts[number].pieces) for own, number in enumerate(numbers)), share


def _line(part: Part) -> str:
    """A part in the list that all nodes must agree on."""

    def of(piece: Piece) -> str:
        source = piece.source
        span = "" if piece.span is None else f"\t{piece.span[0]}-{piece.span[1]}"
        return f"{source.url}\t{source.size}\t{source.pin}{span}"

    return "\t+\t".join(of(piece) for piece in part.pieces)


def require_same_share(made: NodeShare | None, wanted: NodeShare | None, *, where: str) -> None:
    """Refuse to take one share for another.

    Raises:
        ConfigMismatchError: saying which it is and which was asked for.
    """
    if made != wanted:
        raise ConfigMismatchError(
            f"{where} is {share_text(made)}, this run asks for {share_text(wanted)}. "
            "Use another --output."
        )


def share_text(share: NodeShare | None) -> str:
    """A share in words."""
    if share is None:
        return "a dataset of all sources"
    return f"share {share.rank} of {share.nodes} (sources {share.sources[:8]})"
