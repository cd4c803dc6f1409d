"""What nodes tell each other of their shares, and whether those fit together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_ext.dataset.manifest import NodeShare
from streaming_ext.dataset.reading import manifest_of
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.sampler.ranks import DataRank


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What one rank, or one node's manifest, says of the share that it reads.

    Attributes:
        place: who says so, for people: `rank 3`, or a file.
        share: which share; None for a dataset that is none.
        spec: what decided its bytes.
        index_hash: content hash of its index: the identity of the data.
        sequences: in the share, of the length that is asked for.
        settings: arguments that decide the order; empty where a manifest speaks.
    """

    place: str
    share: NodeShare | None
    spec: DatasetSpec | None
    index_hash: str
    sequences: int
    settings: Mapping[str, Any]


def from_group(own: Card, rank: DataRank, group: Any) -> list[Card]:
    """The cards of all data-parallel ranks, in their order."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        if rank.size > 1 or (own.share is not None and own.share.nodes > 1):
            raise UsageError(
                "The dataset is one share of several, and the nodes must compare theirs."
                "\n  1. Call torch.distributed.init_process_group before making the dataset."
                "\n  2. Pass node_local=FOLDER, a folder that holds every node's manifest.json."
                "\n  3. Pass node_local=False to read this share alone, as any dataset."
            )
        return [own]
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, (rank.rank, own), group=group)
    by_rank: dict[int, Card] = {}
    for number, card in gathered:  # replicas say the same
        if number in by_rank and by_rank[number] != card:
            raise ConfigMismatchError(
                f"Two processes are data-parallel rank {number} and hold different data: "
                f"{differences(by_rank[number], card) or 'another index'}."
            )
        by_rank[number] = card
    if sorted(by_rank) != list(range(rank.size)):
        raise UsageError(
            f"The process group holds the data-parallel ranks {sorted(by_rank)} of {rank.size}. "
            "Pass process_group= or device_mesh= with all of them."
        )
    return [by_rank[number] for number in range(rank.size)]


def from_manifests(folder: Path, *, split: str, length: int) -> list[Card]:
    """The cards of all manifests in a folder."""
    cards = []
    files = [file for file in sorted(folder.rglob("*.json")) if file.is_file()]
    for file in files:
        manifest = manifest_of(file.read_bytes(), where=str(file))
        if split not in manifest.splits:
            raise ConfigMismatchError(f"{file}: this share has no split {split!r}.")
        summary = manifest.splits[split]
        cards.append(
            Card(
                place=str(file),
                share=manifest.share,
                spec=manifest.spec,
                index_hash=summary.index.xxh128,
                sequences=summary.samples * manifest.spec.sequence_length // length,
                settings={},
            )
        )
    if not cards:
        raise UsageError(f"{folder} holds no manifest: copy each node's manifest.json into it.")
    return cards


def require_one_group(cards: Sequence[Card], *, each_once: Sequence[Card] = ()) -> list[Card]:
    """One card a share, in their order, when all fit together.

    Args:
        cards: the first one is what the others are compared with.
        each_once: those of which no two may be of one share.

    Raises:
        ConfigMismatchError: naming who differs, in what.
    """
    first = cards[0]
    for card in cards:
        if card.share is None:
            raise ConfigMismatchError(
                f"{card.place} reads a dataset that is no share of several, others do. Make it "
                "with --node-rank and --nodes, or pass node_local=False everywhere."
            )
        if problem := differences(first, card):
            raise ConfigMismatchError(
                f"{card.place} and {first.place} do not fit together: {problem}."
            )
    shares: dict[int, Card] = {}
    for card in cards:
        known = shares.setdefault(number_of(card), card)
        if known.index_hash != card.index_hash:
            raise ConfigMismatchError(
                f"{known.place} and {card.place} both hold share {number_of(card)}, with different "
                f"content: index {known.index_hash} and {card.index_hash}."
            )
    twice = [number for number, count in Counter(map(number_of, each_once)).items() if count > 1]
    if twice:
        places = [card.place for card in each_once if number_of(card) == twice[0]]
        raise ConfigMismatchError(f"Share {twice[0]} is there twice: {' and '.join(places)}.")
    nodes = first.share.nodes if first.share else 0
    if missing := sorted(set(range(nodes)) - set(shares)):
        listed = ", ".join(map(str, missing))
        there = ", ".join(f"{number_of(card)} ({card.place})" for card in shares.values())
        raise ConfigMismatchError(
            f"Of {nodes} shares {listed} {'is' if len(missing) == 1 else 'are'} missing; there are "
            f"{there}. Start a rank on every node, or make the shares again for fewer nodes."
        )
    return [shares[number] for number in range(nodes)]


def number_of(card: Card) -> int:
    return -1 if card.share is None else card.share.rank


def differences(one: Card, other: Card) -> str:
    """In what two cards of a group may not differ, and do."""
    lines = []
    if one.share and other.share:
        if one.share.nodes != other.share.nodes:
            lines.append(f"shares of {one.share.nodes} and of {other.share.nodes} nodes")
        elif one.share.sources != other.share.sources:
            lines.append("made from other lists of sources")
    if one.spec and other.spec and (found := one.spec.differences(other.spec)):
        fields = [line.partition(":")[0] for line in found]
        lines.append(f"made with another {', '.join(fields)}")
    if one.settings and other.settings:
        lines += [
            f"{name}={one.settings[name]!r} and {other.settings.get(name)!r}"
            for name in one.settings
            if one.settings[name] != other.settings.get(name)
        ]
    return "; ".join(lines)
