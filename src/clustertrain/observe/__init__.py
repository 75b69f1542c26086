"""What a run says of itself: events, curves, and how they are shown."""
