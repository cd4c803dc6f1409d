"""The files that go together when an output is made of published ones."""

from streaming_ext.dataset.schema import FileRecord
from tasks.core.workers.messages import Message


class Block(Message):
    """Some consecutive bytes of a file: how many, and their content hash."""

    size: int
    xxh128: str


class Move(Message):
    """A file that is to lie on the output.

    Attributes:
        root: URL of the dataset or export that it is of.
        path: where it lies there.
        to: where it goes, below the root of the output.
        blocks: all of its bytes.
    """

    root: str
    path: str
    to: str
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, root: str, file: FileRecord, to: str | None = None) -> "Move":
        """The move of a file that is recorded as a whole."""
        block = Block(size=file.size, xxh128=file.xxh128)
        return cls(root=root, path=file.path, to=to or file.path, blocks=(block,))

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(block.size for block in self.blocks)


class Text(Message):
    """A small file of text, such as a record."""

    path: str
    text: str

    @property
    def file(self) -> FileRecord:
        """Its path, size and hash."""
        return FileRecord.of(self.path, self.text.encode())


class Unit(Message):
    """Files that go together: the texts when all others are there.

    Attributes:
        documents, tokens: that they hold, where that is told.
    """

    moves: tuple[Move, ...] = ()
    texts: tuple[Text, ...] = ()
    documents: int = 0
    tokens: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file on the output, in bytes."""
        return {move.to: move.size for move in self.moves} | {
            text.path: text.file.size for text in self.texts
        }
