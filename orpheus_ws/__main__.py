"""`python -m orpheus_ws` is `orpheus-ws`."""

from orpheus_ws.cli import main

# TensorRT-LLM's worker process may import this again, under another name.
if __name__ == "__main__":
    main()
