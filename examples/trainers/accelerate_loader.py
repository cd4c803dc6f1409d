"""A loader whose state accelerate saves."""

from accelerate import Accelerator

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


def loader_of(accelerator: Accelerator, data: str, global_batch: int) -> StreamingTokenLoader:
    dataset = StreamingTokenDataset(
        local=data,
        global_batch=global_batch,
        shuffle=True,
        extras=["targets"],
        dp_rank=accelerator.process_index,
        dp_world_size=accelerator.num_processes,
    )
    loader = StreamingTokenLoader(dataset)
    accelerator.register_for_checkpointing(loader)
    return loader


# accelerator.save_state(folder) and accelerator.load_state(folder) then include the loader. Move
# batches with .to(accelerator.device, non_blocking=True).
