"""What a run tells of itself: progress, report and figures."""
