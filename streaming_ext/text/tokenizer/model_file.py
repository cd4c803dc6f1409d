"""Tokenizers of SentencePiece: a .model file, as the library trains it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from streaming_ext.base.errors import TokenizerError, one_line
from streaming_ext.text.tokenizer.tokenizer import Marks, Tokenizer, fingerprint_of


@dataclass(frozen=True, kw_only=True)
class ModelTokenizer(Tokenizer):
    """A tokenizer of the library `sentencepiece`; the fingerprint covers all bytes of the model."""

    kind: ClassVar = "sentencepiece"
    package: ClassVar = "sentencepiece"
    file_name: ClassVar = "tokenizer.model"

    @cached_property
    def model(self) -> Any:
        """The `SentencePieceProcessor` of the library."""
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=self.data)

    @classmethod
    def of(
        cls,
        data: bytes,
        name: str,
        *,
        where: str,
        eot_token: str | None,
        bos_token: str | None = None,
    ) -> "ModelTokenizer":
        """Load the content of a model file."""
        import sentencepiece

        try:
            model = sentencepiece.SentencePieceProcessor(model_proto=data)
            size = model.get_piece_size()
        except Exception as error:  # noqa: BLE001 - sentencepiece raises what C++ raises
            raise TokenizerError(
                f"sentencepiece cannot read {where}: {one_line(error)}. Is it a whole model?"
            ) from None
        control = {model.id_to_piece(id_): id_ for id_ in range(size) if model.is_control(id_)}
        eos, bos = (
            model.id_to_piece(id_) if id_ >= 0 else None for id_ in (model.eos_id(), model.bos_id())
        )
        marks = Marks(
            where=where,
            special=control,
            is_ordinary=lambda token: not model.is_unknown(model[token]),
            how="train the model with it among its control_symbols",
        ).choose(eos if eot_token is None else eot_token, bos_token)
        made = cls(
            name=name,
            vocab_size=size,
            **marks,
            usual_bos=bos,
            fingerprint=fingerprint_of(
                cls.kind, f"{marks['eot_token']}\n".encode(), data, bos_token=bos_token
            ),
            data=data,
        )
        vars(made).update(model=model)
        return made

    @classmethod
    def saved(cls, data: bytes, where: str, spec: Mapping[str, Any]) -> "ModelTokenizer":
        """Open what `save` wrote."""
        tokens = {name: spec.get(name) for name in ("eot_token", "bos_token")}
        return cls.of(data, spec["name"], where=where, **tokens)

    def encode(self, text: str) -> list[int]:
        """Return the library's ids, without tokens that it would add at the beginning or end."""
        ids: list[int] = self.model.encode(text, add_bos=False, add_eos=False)
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the library's text, with the names of control ids, which the library omits."""
        text = ""
        for is_control, run in groupby(ids, self.model.is_control):
            if is_control:
                text += "".join(map(self.model.id_to_piece, run))
            else:
                text += self.model.decode(list(run))
        return text.encode()
