"""The proxies in `deploy/` lead to what the server has."""

import re

import pytest

from orpheus_ws.surfaces import http_surfaces, surfaces
from tests.promql import ROOT

SOCKETS = {path for surface in surfaces() for path in surface.paths}
REQUESTS = {path for surface in http_surfaces() for path in (*surface.paths, *surface.pages)}

NGINX = r"location ~ \^\((.*)\)\$ \{{\s+proxy_pass http://{};"
ENVOY = r"match: \{{path: (\S+?)\}},?\s+route: [&*]{}\b"


@pytest.mark.parametrize(
    ("file", "sockets", "requests"),
    [
        ("haproxy/haproxy.cfg", r"acl socket path (.*)", r"acl request path (.*)"),
        ("nginx/nginx.conf", NGINX.format("replicas"), NGINX.format("requests")),
        ("envoy/envoy.yaml", ENVOY.format("socket"), ENVOY.format("request")),
    ],
)
def test_every_path_is_routed(file: str, sockets: str, requests: str) -> None:
    """A proxy lets in exactly the paths of the surfaces, and each to the port that it belongs to."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    for pattern, known in ((sockets, SOCKETS), (requests, REQUESTS)):
        found = [path for match in re.findall(pattern, text) for path in re.split(r"[ |]", match)]
        assert sorted(found) == sorted(known)
