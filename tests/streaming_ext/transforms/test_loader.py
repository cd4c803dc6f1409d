"""Chains in DataLoaders with real workers: the same batches, and a state between any two."""

import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from streaming_ext.base.errors import ConfigMismatchError, UsageError, WorkerDiedError
from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader
from tests.command_line import is_alive, wait_for
from tests.streaming_ext.transforms.chains import NUMBERED, plain, subset_of
from tests.streaming_ext.transforms.test_sft import TALKS, TEMPLATE


def chain() -> CheckpointableDataset:
    rows = CheckpointableDataset.from_sequence(NUMBERED).concat_chunk(5).shuffle(4)
    return rows.enumerate().batch(2)


def expected(workers: int, each: int = 1) -> list[Any]:
    """Return the workers' batches in turns, `each` at a time."""
    subsets = [[plain(one) for one in subset_of(chain(), n, workers)] for n in range(workers)]
    found = []
    while any(subsets):
        for subset in subsets:
            found += subset[:each]
            del subset[:each]
    return found


def passed(loader: CheckpointableLoader) -> tuple[list[Any], list[Any]]:
    """Return the batches of a pass, and the states before each of them and after the last."""
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(plain(batch))
        states.append(json.loads(json.dumps(loader.state_dict())))
    return batches, states


def test_two_workers_and_a_state_between() -> None:
    batches, states = passed(CheckpointableLoader(chain(), num_workers=2, samples_in_message=2))
    assert batches == expected(2, each=2)
    for position in (3, len(batches) - 1):
        again = CheckpointableLoader(chain(), num_workers=2)  # the state has the message size
        again.load_state_dict(states[position])
        assert [*map(plain, again)] == batches[position:]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_resumes_with_fewer_workers(workers) -> None:
    """The state has four subsets, which end at different times."""
    first = CheckpointableLoader(chain(), samples_in_message=2)
    first.load_state_dict({**first.state_dict(), "states": [None] * 4})
    batches, states = passed(first)
    assert batches == expected(4, each=2)
    for position in range(len(batches)) if workers == 0 else (3,):
        again = CheckpointableLoader(chain(), num_workers=workers, samples_in_message=2)
        again.load_state_dict(states[position])
        assert [*map(plain, again)] == batches[position:]


def test_a_pass_that_was_interrupted_restarts() -> None:
    loader = CheckpointableLoader(chain())
    batches = iter(loader)
    first = [plain(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    assert [*map(plain, loader)] == expected(1)
    assert [*map(plain, loader)] == expected(1)  # another pass
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert [*first, *map(plain, loader)] == expected(1)


def odd(samples: Any) -> dict[str, Any]:
    made = torch.arange(6.0).view(2, 3)
    return {
        "brain": made.bfloat16(),
        "learned": made.clone().requires_grad_(),
        "turned": made.T,
        "none": torch.empty(0, 3),
        "one": torch.tensor(7),
        "list": [made, "text"],
        "large": torch.arange(1 << 19),
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_all_kinds(workers) -> None:
    """These include tensors that NumPy does not support."""
    dataset = CheckpointableDataset.from_sequence(NUMBERED[:5]).batch(2, odd)
    found = list(CheckpointableLoader(dataset, num_workers=workers))
    assert len(found) == 3
    for sample in found:
        for name, value in odd([]).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(sample[name], value)
                assert sample[name].dtype == value.dtype
        assert torch.equal(sample["list"][0], odd([])["list"][0])
    assert found[0]["learned"].requires_grad


class Pair(NamedTuple):
    """A batch of two tensors."""

    one: torch.Tensor
    brain: torch.Tensor


def has_ended(pid: Path) -> bool:
    """Return whether the process that wrote its id has ended."""
    number = pid.read_text() if pid.exists() else ""
    if not number:
        return False
    try:
        return not is_alive(psutil.Process(int(number)))
    except psutil.NoSuchProcess:
        return True


def test_what_a_worker_sent_outlives_it(tmp_path) -> None:
    """Its tensors do too, anywhere in a sample."""
    made = {"one": torch.ones(4), "brain": torch.ones(4, dtype=torch.bfloat16)}

    def batch(_: Any) -> Any:
        worker = get_worker_info()
        if worker is not None and worker.id == 1:
            (tmp_path / "pid").write_text(str(os.getpid()))
        else:  # wait until the other one has sent all and ended
            wait_for(lambda: has_ended(tmp_path / "pid"))
        return Pair(**made)

    batches = CheckpointableDataset.from_sequence(NUMBERED[:4]).batch(1, batch)
    found = list(CheckpointableLoader(batches, num_workers=2))
    assert len(found) == 4
    for one in found:
        assert type(one) is Pair
        assert all(torch.equal(getattr(one, name), made[name]) for name in made)


def test_what_cannot_be_sent_is_an_error() -> None:
    dataset = CheckpointableDataset.from_sequence(NUMBERED[:5]).batch(2, lambda _: lambda: None)
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        list(CheckpointableLoader(dataset, num_workers=1))


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_get_what_is_local(start: str, hub_tokenizer) -> None:
    """These are lambdas, local functions and classes, chat templates and `worker_init_fn`."""

    class Talks:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter(TALKS)

    def whole(samples: list[dict[str, Any]]) -> list[Any]:
        return [*map(plain, samples), variable in os.environ]

    variable = "BEGUN_BY_A_LAMBDA"
    chain = CheckpointableDataset.from_iterable(Talks()).filter(lambda sample: len(sample) == 1)
    batches = chain.sft(hub_tokenizer, chat_template=TEMPLATE).batch(4, whole)
    loader = CheckpointableLoader(
        batches,
        num_workers=1,
        multiprocessing_context=start,
        worker_init_fn=lambda worker: os.environ.update({variable: str(worker)}),
    )
    expected = [[*batch[:-1], True] for batch in batches]
    assert len(expected) == 3
    assert [*loader] == expected
    sent = pickle.loads(pickle.dumps(batches))  # noqa: S301 - as torch's own loader sends it
    assert [*sent] == [*batches]


def test_what_cannot_be_sent_to_a_worker_is_an_error_that_says_so() -> None:
    lock = threading.Lock()
    dataset = CheckpointableDataset.from_sequence(NUMBERED).map(lambda _: lock)
    loader = CheckpointableLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(UsageError, match=r"cannot be sent to a worker: .*lock.*; or pass num_wor"):
        list(loader)


def test_a_worker_that_is_killed_is_an_error() -> None:
    dataset = CheckpointableDataset.from_sequence(NUMBERED).map(lambda _: os._exit(3))
    advice = r"A worker died while it made a batch: .*\w\. If it printed .*__main__"
    with pytest.raises(WorkerDiedError, match=advice):
        list(CheckpointableLoader(dataset, num_workers=1))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader = stateful(chain(), batch_size=None, num_workers=2)
    batches = iter(loader)
    first = [plain(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    assert [*first, *map(plain, batches)] == expected(2)
    again = stateful(chain(), batch_size=None, num_workers=2)
    again.load_state_dict(state)
    assert [*map(plain, again)] == expected(2)[3:]


def test_wrong_usage() -> None:
    with pytest.raises(UsageError, match="batch_size: the chain makes batches"):
        CheckpointableLoader(chain(), batch_size=4)
    with pytest.raises(UsageError, match="in_order: the chain makes"):
        CheckpointableLoader(chain(), num_workers=2, in_order=False)
    with pytest.raises(UsageError, match="`num_workers` must be at least 0, got -1"):
        CheckpointableLoader(chain(), num_workers=-1)
    state = CheckpointableLoader(chain(), num_workers=4).state_dict()
    with pytest.raises(
        ConfigMismatchError, match="of 4 workers.* num_workers=0, or a divisor of 4"
    ):
        CheckpointableLoader(chain(), num_workers=3).load_state_dict(state)
    loader = CheckpointableLoader(chain())
    next(iter(loader))
    with pytest.raises(ConfigMismatchError, match="this one is"):
        CheckpointableLoader(chain().take(3)).load_state_dict(loader.state_dict())


def test_processes_of_its_own_are_refused_in_a_worker(tmp_path) -> None:
    chained = CheckpointableDataset.from_sequence(NUMBERED).parallel_map(dict, max_workers=1)
    with pytest.raises(UsageError, match="executor_type='thread'"):
        list(CheckpointableLoader(chained, num_workers=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_older_iteration_is_refused(workers) -> None:
    loader = CheckpointableLoader(chain(), num_workers=workers)
    older = iter(loader)
    first = plain(next(older))
    newer = iter(loader)
    assert plain(next(newer)) == first
    with pytest.raises(UsageError, match="A newer iteration of this loader began"):
        next(older)
    assert [first, *map(plain, newer)] == expected(1)
