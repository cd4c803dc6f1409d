"""A callback that has Composer save the state of the loader."""

from typing import Any

from composer import Callback, Trainer

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


class SaveLoader(Callback):
    def __init__(self, loader: StreamingTokenLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def trainer_of(model: Any, data: str, batch_size: int, **options: Any) -> Trainer:
    dataset = StreamingTokenDataset(
        local=data, batch_size=batch_size, shuffle=True, extras=["targets"]
    )
    loader = StreamingTokenLoader(dataset)
    return Trainer(
        model=model,
        train_dataloader=loader,
        callbacks=[SaveLoader(loader)],
        spin_dataloaders=False,
        **options,
    )
