"""How OLMo-core packs documents of given lengths, file by file: padding, and what it leaves out.

Run by an interpreter that has `ai2-olmo-core`: olmo_packing.py LENGTHS.npy DOCUMENTS_A_FILE ROW...
Documents longer than a row are truncated, as its datasets do unless told otherwise. Prints a line
of JSON: by length of a row, the shares of padding and of tokens that are in no row.
"""

import json
import sys

import numpy as np
from olmo_core.data.utils import InstancePacker


def main() -> None:
    """Pack for each length of a row."""
    lengths = np.load(sys.argv[1])
    a_file = int(sys.argv[2])
    found = {}
    for size in map(int, sys.argv[3:]):
        rows = tokens = 0
        for first in range(0, len(lengths), a_file):
            some = np.minimum(lengths[first : first + a_file], size)
            ends = np.cumsum(some)
            packed = InstancePacker(size).pack_documents(np.stack([ends - some, ends], axis=1))
            rows, tokens = rows + len(packed[0]), tokens + int(packed[2])
        found[size] = [1 - tokens / (rows * size), 1 - tokens / int(lengths.sum())]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
