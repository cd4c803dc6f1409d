"""`shardmill shard --dry-run`: what a run would do, with nothing done."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from flows.terminal.columns import show_facts
from flows.terminal.visible import bytes_text, counted, say
from streaming_ext.base.units import size_text
from streaming_ext.store import open_storage
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.run_plan import RunPlan

_SHOWN = 10  # parts, where not all are asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a run would do.

    Attributes:
        output: where the dataset is or would be.
        plan: of the run.
    """

    output: str
    plan: RunPlan

    def facts(self) -> dict[str, Any]:
        """What is told as JSON."""
        plan = self.plan
        return {
            "output": self.output,
            "published": plan.published,
            "parts": len(plan.parts),
            "done": len(plan.parts) - len(plan.todo),
            "todo": [plan.parts[part].source for part in plan.todo],
            "todo_bytes": self.todo_bytes,
            "scratch": str(plan.scratch),
            "executor": plan.config.executor,
            "workers": plan.config.workers,
            "spec": plan.spec.model_dump(mode="json"),
        }

    @property
    def todo_bytes(self) -> int:
        """Bytes of the parts that would be done."""
        return sum(self.plan.parts[part].size for part in self.plan.todo)


def look(config: ShardConfig) -> DryRun:
    """Compare sources, tokenizer and configuration with what the output holds.

    Raises:
        UsageError: the run would be refused; says why.
        StorageError: sources or output cannot be read.
    """
    storage = open_storage(config.output)
    return DryRun(output=str(storage), plan=plan_shard(config, storage))


def show_dry_run(found: DryRun, console: Console, *, all_files: bool) -> None:
    """What would be done, on the terminal."""
    plan, spec = found.plan, found.plan.spec
    done = len(plan.parts) - len(plan.todo)
    state = "is whole already; nothing would be done" if plan.published else "would be made"
    if done and not plan.published:
        state = f"would be finished: {counted(done, 'part')} of {len(plan.parts)} done before"
    if plan.parent is not None and not plan.published:
        new = len(plan.parts) - len(plan.parent.manifest.parts)
        state = f"has {counted(len(plan.parts) - new, 'part')}, and would have {new:,} more"
    facts = [
        ("output", f"{found.output} {state}"),
        ("to do", f"{counted(len(plan.todo), 'part')}, {bytes_text(found.todo_bytes)}"),
        ("tokenizer", f"{spec.tokenizer.name}, {spec.tokenizer.vocab_size:,} ids"),
        ("samples", f"{spec.sequence_length:,} tokens of {spec.dtype}"),
        ("shards", f"up to {size_text(spec.shard_size)}, compression {spec.compression}"),
        ("holdout", f"{spec.holdout_fraction:.4%} of the documents, seed {spec.holdout_seed}"),
        ("workers", f"{plan.config.workers}, executor {plan.config.executor}"),
        ("scratch", str(plan.scratch)),
    ]
    show_facts(facts, console)
    shown = plan.todo if all_files else plan.todo[:_SHOWN]
    for part in shown:
        say(console, f"  {plan.parts[part].source}")
    if len(shown) < len(plan.todo):
        say(console, f"  ... and {len(plan.todo) - len(shown):,} more; --verbose tells all")
