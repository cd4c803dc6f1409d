"""Pauses between the attempts of a request."""

import random

from streaming_ext.storage.patience import Retry


def test_random_numbers_of_the_training_script_stay_its_own() -> None:
    """Retries happen in threads of ours: what a script draws must not depend on them."""
    before = random.getstate()
    pauses = {Retry().pause(0) for _ in range(8)}
    assert random.getstate() == before
    assert len(pauses) > 1
    assert all(0.25 <= pause <= 0.5 for pause in pauses)
