"""Everything that starts a process. No other folder may."""
