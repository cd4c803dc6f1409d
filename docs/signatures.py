"""A griffe extension: a signature that is made at run time is documented as it is then."""

import importlib
import inspect
import re
from typing import Any

import griffe

_PATHS = {"streaming_ext.training.token_dataset.StreamingTokenDataset.__init__"}


class RuntimeSignatures(griffe.Extension):
    """Takes arguments and docstring of some methods from the imported class."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace what the source says about the method."""
        if func.path not in _PATHS or func.parent is None or func.docstring is None:
            return
        owner = getattr(importlib.import_module(func.module.path), func.parent.name)
        method = getattr(owner, func.name)
        func.docstring.value = inspect.getdoc(method) or ""
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    annotation=re.sub(r"(\w+\.)+", "", inspect.formatannotation(each.annotation)),
                    kind=griffe.ParameterKind(each.kind.description),
                    default=None if each.default is each.empty else repr(each.default),
                )
                for each in inspect.signature(method).parameters.values()
            )
        )
