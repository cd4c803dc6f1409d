"""The amount of each stream in an epoch, as given and as achieved."""

import numpy as np
import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.training.arguments import TokenStream
from streaming_ext.training.features.mixing import sequences_an_epoch
from tests.streaming_ext.build import build_some


def streams(**values) -> list[TokenStream]:
    ((name, amounts),) = values.items()
    return [TokenStream(local="x", **{name: amount}) for amount in amounts]


@pytest.mark.parametrize(
    ("proportions", "epoch_size", "expected"),
    [
        ([3, 1], 100, [75, 25]),
        ([0.7, 0.2, 0.1], 1000, [700, 200, 100]),
        ([1, 1, 1], 100, None),
        ([1, 1], None, [15, 15]),
    ],
)
def test_proportions(proportions, epoch_size, expected) -> None:
    found = sequences_an_epoch(
        streams(proportion=proportions), [10, 20, 5][: len(proportions)], epoch_size=epoch_size
    )
    assert sum(found) == (epoch_size or 30)
    assert found == expected or sorted(found) == [33, 33, 34]


def test_amounts() -> None:
    assert sequences_an_epoch(streams(repeat=[0.5, 2]), [10, 20], epoch_size=None) == [5, 40]
    assert sequences_an_epoch(streams(choose=[7, 9]), [10, 20], epoch_size=16) == [7, 9]
    assert sequences_an_epoch([TokenStream(local="x")], [10], epoch_size=None) == [10]
    assert sequences_an_epoch([TokenStream(local="x")], [10], epoch_size=99) == [99]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"proportion": 1, "choose": 3}, "one of proportion"),
        ({"repeat": 0}, "`repeat` must be a number above 0, got 0"),
        ({"proportion": True}, "`proportion` must be a number above 0, got True"),
        ({"choose": "40"}, "`choose` must be a whole number .*got '40'"),
        ({"max_repeats": 3}, "`max_repeats` goes with `proportion`"),
        ({"proportion": 1, "max_repeats": 0}, "`max_repeats` must be a number above 0"),
        ({"proportion": "much"}, "`proportion` must be a number, or a schedule"),
    ],
)
def test_a_stream_that_contradicts_itself_is_refused(values, said) -> None:
    with pytest.raises(UsageError, match=said):
        TokenStream(local="x", **values)


def test_amounts_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(UsageError, match="all of them one, or none"):
        sequences_an_epoch([*streams(proportion=[1]), TokenStream(local="x")], [1, 1], epoch_size=4)
    with pytest.raises(UsageError, match="give 16 sequences"):
        sequences_an_epoch(streams(choose=[7, 9]), [10, 20], epoch_size=17)


@pytest.mark.parametrize(
    ("proportions", "settings", "said"),
    [
        (("0:1 5:2", None), {}, "each with a proportion"),
        (("0:1 5:2", 1), {"epoch_size": 7}, "gives 3 sequences per epoch, less than the 8"),
        (("0:1 5:2", 1), {"epoch_size": 7, "drop_last": False}, "less than the 8 that"),
        (
            ("0:1 2k:3", 1),
            {"batching_method": "stratified"},
            "'stratified' holds one mixture in every step",
        ),
    ],
)
def test_mixtures_that_contradict_themselves_are_refused(
    raw, open_raw, proportions, settings, said
) -> None:
    mixed = [TokenStream(local=raw.root, proportion=proportion) for proportion in proportions]
    with pytest.raises(UsageError, match=said):
        open_raw(local=None, streams=mixed, **settings)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"vocab_size": 100_000}, "uint16, uint32"), ({"fingerprint": "f1"}, "different tokenizers")],
)
def test_ids_that_differ_are_refused(raw, open_raw, tmp_path, other, said) -> None:
    roots = [raw.root, build_some(tmp_path / "other", 9, **other).root]
    with pytest.raises(UsageError, match=said):
        open_raw(local=None, streams=[TokenStream(local=root) for root in roots])


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_mixture_came_to(load, tmp_path, workers) -> None:
    counts = ((300, 6, "web"), (60, 3, "code"), (90, 1, "web"))  # documents, proportion, domain
    mixed = [
        TokenStream(
            local=build_some(tmp_path / str(documents), documents).root,
            proportion=proportion,
            domain=domain,
        )
        for documents, proportion, domain in counts
    ]
    loader = load(
        local=None,
        streams=mixed,
        batch_size=5,
        num_canonical_nodes=3,
        epoch_size=400,
        extras=["stream_ids", "domain_ids"],
        num_workers=workers,
    )
    seen = np.zeros(3, np.int64)
    for left_out in (0, 4):  # the first epoch has 399 in steps of 5
        for batch in loader:
            streams = batch["stream_ids"].numpy()
            assert (batch["domain_ids"].numpy() == np.array([0, 1, 0])[streams]).all()
            seen += np.bincount(streams, minlength=3)
            reported = loader.achieved()
            more = np.array([each.sequences for each in reported]) - seen
            assert (more >= 0).all()
            assert more.sum() == left_out
            assert loader.tokens_seen == (seen.sum() + left_out) * 8
    assert [each.domain for each in reported] == ["web", "code", "web"]
    assert sum(each.fraction for each in reported) == pytest.approx(1)
    assert abs(reported[0].fraction - 0.6) < 0.02
    assert reported[1].passes == reported[1].sequences / loader.dataset.plan.sizes[1] > 1
