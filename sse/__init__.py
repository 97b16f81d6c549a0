"""The SDK for code in the agent's process: talks HTTP to the daemon, imports nothing of it."""
