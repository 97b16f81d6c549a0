"""What a task is: its config, its folder, and the datasets tasks come in."""
