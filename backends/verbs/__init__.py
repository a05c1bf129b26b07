"""What each tool does that is the same for every target."""
