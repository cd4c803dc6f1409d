"""Progress, report and figures of a run."""
