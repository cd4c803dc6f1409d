"""Copies of samples: what somebody does to one that was handed over is seen nowhere else."""

import copy
from typing import Any

import numpy as np
import torch

# What cannot be changed, and is most of what samples hold.
_FIXED = frozenset({str, int, float, bool, bytes, complex, type(None)})


def copied(value: Any) -> Any:
    """A sample with containers, arrays and tensors of its own, at any depth.

    Objects of other kinds, such as images, are shared: what copies of them cost, or whether they
    can be had, is not known here.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {name: one if type(one) in _FIXED else copied(one) for name, one in value.items()}
    if kind is list and _FIXED.issuperset(map(type, value)):  # tokens: many
        return value.copy()
    if kind is list or kind is tuple:
        return kind(copied(one) for one in value)
    return _of_other_kind(value)


def _of_other_kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict | list | tuple | set | bytearray):  # and what others made of these
        return copy.deepcopy(value)
    return value
