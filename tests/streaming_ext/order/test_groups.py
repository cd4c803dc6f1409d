"""Real process groups: the steps of each rank, and one perplexity on any number of ranks."""

import itertools
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import UsageError
from tests.streaming_ext.processes import in_processes, join_group
from tests.streaming_ext.training.trainers.recipes import load_recipe

Steps = list[list[int]]


def steps_of(root: Path, batch_size: int, **settings: Any) -> Steps:
    dataset = StreamingTokenDataset(
        local=root, batch_size=batch_size, shuffle=True, extras=["sequence_ids"], **settings
    )
    return [batch["sequence_ids"].tolist() for batch in StreamingTokenLoader(dataset)]


def together(ranks: list[Steps]) -> Steps:
    """Return the steps of some ranks together, each step sorted."""
    return [sorted(itertools.chain(*step)) for step in zip(*ranks, strict=True)]


def every_way(rank: int, root: Path, store: Path) -> dict[str, Any]:
    """Return the steps of one of four processes, for each way to find its rank."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    found: dict[str, Any] = {}
    with pytest.raises(UsageError, match=r"sees no rank[\s\S]*torchrun"):
        steps_of(root, 6)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4"}
    found["environment"] = steps_of(root, 6)
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    join_group(store, rank, 4)
    os.environ["RANK"] = "3"  # the group takes precedence over an incomplete environment
    found["default group"] = steps_of(root, 6)
    del os.environ["RANK"]
    found["replicated"] = steps_of(root, 12, replication=2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found["mesh"] = steps_of(root, 12, device_mesh=mesh["dp"])
    found["group"] = steps_of(root, 12, process_group=mesh.get_group("dp"))
    inner = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    found["inner mesh"] = steps_of(root, 12, device_mesh=inner["dp"])
    with pytest.raises(UsageError, match=r"2 dimensions .*mesh\[\"dp\"\]"):
        steps_of(root, 12, device_mesh=mesh)
    distributed.destroy_process_group()
    return found


def test_four_processes_find_their_ranks(raw, tmp_path) -> None:
    found = in_processes(4, every_way, raw.root, tmp_path / "store")
    alone = together([steps_of(raw.root, 24, dp_rank=0, dp_world_size=1)])
    for way in ("environment", "default group"):
        assert together([each[way] for each in found]) == alone
    # Pairs of processes: the tensor- or pipeline-parallel ranks of one data-parallel rank.
    same = {
        "replicated": [(0, 1), (2, 3)],
        "mesh": [(0, 1), (2, 3)],
        "group": [(0, 1), (2, 3)],
        "inner mesh": [(0, 2), (1, 3)],
    }
    for way, pairs in same.items():
        for one, other in pairs:
            assert found[one][way] == found[other][way]
        assert together([found[one][way] for one, _ in pairs]) == alone


def evaluate(rank: int, size: int, root: Path, store: Path, model: Any, recipe: Any) -> Any:
    join_group(store, rank, size)
    return recipe.perplexity(model, str(root), 3)


def test_perplexity_is_the_same_on_any_number_of_ranks(raw, tmp_path) -> None:
    torch.manual_seed(0)
    model = load_recipe("torchrun_train", tmp_path).TinyGPT(100).double()
    evaluation = load_recipe("evaluation", tmp_path)
    found = {}
    for size in (1, 3):
        store = tmp_path / f"store {size}"
        ranks = in_processes(size, evaluate, size, raw.root, store, model, evaluation)
        assert len(set(ranks)) == 1
        found[size] = ranks[0]
    assert len({tokens for _, tokens in found.values()}) == 1
    whole = len(raw.streams["holdout"])
    assert 0.8 * whole < found[1][1] < whole  # some targets lie in the next shard, some are padding
    assert math.log(found[1][0]) > 3
    for perplexity, _ in found.values():
        assert perplexity == pytest.approx(found[1][0], rel=1e-12)
