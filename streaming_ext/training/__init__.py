"""From rows to batches.

The way of a batch, with the file of each step:

    arguments.py      the datasets to train on, and all settings; opening.py opens what they name
    order/            the sequences of each step: one plan, the same on any number of ranks
    reading/          shards in a cache, mapped, as rows of tokens: `TokenSource`
    columns.py        the contents of a batch besides tokens: `Column`
    batch_reader.py   rows and columns of many steps at once
    token_dataset.py  the dataset of stock DataLoaders; loader.py the one that gives whole batches
    resume.py         the state; position.py the position of a plain DataLoader and its workers

A feature is one file of features/: a source that wraps a source, a column, or an answer about the
data. opening.py imports it when its argument is given; answers are imported by the methods that
give them.
"""
