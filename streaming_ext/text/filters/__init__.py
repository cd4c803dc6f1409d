"""Which documents stay: conditions on a row's other columns, and bounds on a text's length."""
