"""Files of token sets, wherever they lie: those beside each other, and the ids in one."""
