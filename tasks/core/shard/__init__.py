"""Making a dataset of sources: plan, phases, publishing; extending and importing."""
