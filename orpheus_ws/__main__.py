"""`python -m orpheus_ws` is `orpheus-ws`."""

from orpheus_ws.cli import main

main()
