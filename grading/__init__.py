"""What is run and judged: checks, workspaces, capture, submission, grade."""
