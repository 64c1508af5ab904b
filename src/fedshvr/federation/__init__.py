"""Who holds what and works how long."""
