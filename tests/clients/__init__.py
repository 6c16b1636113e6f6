"""Programs that drive real clients of other people's.

Rule: each is run by the Python of an environment of its own, from the root of the tree, as
`python -m tests.clients.NAME`, and imports nothing but its client's packages and this folder. Those of
our own plugins import `orpheus_ws.integrations` as well. What it can be told is in `acting`;
`tests/clients_list.py` lists them all, and a file in `environments` is what pip installs for one.
"""
