"""`--dry-run`: what a run would do."""

from typing import Any

from rich.console import Console

from flows.terminal.tables import show_facts, spec_facts
from flows.terminal.visible import bytes_text, counted, say
from streaming_ext.store import Storage
from tasks.core.shard.run_plan import RunPlan

_SHOWN = 10  # parts, unless all are wanted


def _todo_bytes(plan: RunPlan) -> int:
    return sum(plan.parts[part].size for part in plan.todo)


def dry_run_facts(plan: RunPlan, output: Storage) -> dict[str, Any]:
    """What would be done, for JSON."""
    return {
        "output": str(output),
        "published": plan.published,
        "parts": len(plan.parts),
        "done": len(plan.parts) - len(plan.todo),
        "todo": [plan.parts[part].source for part in plan.todo],
        "todo_bytes": _todo_bytes(plan),
        "scratch": str(plan.scratch),
        "executor": plan.config.executor,
        "workers": plan.config.workers,
        "spec": plan.spec.model_dump(mode="json"),
    }


def show_dry_run(plan: RunPlan, output: Storage, console: Console, *, all_parts: bool) -> None:
    """What would be done, on the terminal."""
    done = len(plan.parts) - len(plan.todo)
    if plan.published:
        state = "is complete; nothing would be done"
    elif plan.base is not None:
        old = len(plan.base.manifest.parts)
        state = f"has {counted(old, 'part')}, and would have {len(plan.parts) - old:,} more"
    elif done:
        state = f"would be finished: {counted(done, 'part')} of {len(plan.parts)} done before"
    else:
        state = "would be made"
    facts = [
        ("output", f"{output} {state}"),
        ("to do", f"{counted(len(plan.todo), 'part')}, {bytes_text(_todo_bytes(plan))}"),
        *spec_facts(plan.spec),
        ("workers", f"{plan.config.workers}, executor {plan.config.executor}"),
        ("scratch", str(plan.scratch)),
    ]
    show_facts(facts, console)
    shown = plan.todo if all_parts else plan.todo[:_SHOWN]
    for part in shown:
        say(console, f"  {plan.parts[part].source}")
    if len(shown) < len(plan.todo):
        say(console, f"  ... and {len(plan.todo) - len(shown):,} more; --verbose shows all")
