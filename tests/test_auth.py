"""Who may connect: every form of a key, tokens that expire and cannot be changed, the loopback rule."""

import base64
import hashlib
import hmac
import string
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.datastructures import Headers

from orpheus_ws.access_tokens import make_token
from orpheus_ws.config import AuthConfig, load
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import ANONYMOUS, read_keys
from orpheus_ws.server.auth import MOST_FIELDS, MOST_PRESENTED, allows_origin, check_exposure
from orpheus_ws.server.auth import identify as find_key

PATH = "/v1/tts"
NOW = 1_800_000_000.0
KEYS = AuthConfig(keys={"mobile": "s3cret-of-mobile", "web": "s3cret-of-web"})
TOKEN = make_token("mobile", "s3cret-of-mobile", expires=int(NOW) + 60)


def identify(auth: AuthConfig, headers: Headers, path: str, now: float) -> str | None:
    """Whose key a request carries."""
    key = find_key(read_keys(auth), headers, path, now)
    return None if key is None else key.tenant


def by_header(name: str, value: str, auth: AuthConfig = KEYS) -> str | None:
    """Who a request with this header is."""
    return identify(auth, Headers([(name, value)]), PATH, NOW)


def by_token(token: str, auth: AuthConfig = KEYS, now: float = NOW) -> str | None:
    """Who a request with this token in its address is."""
    return identify(auth, Headers(), f"{PATH}?token={quote(token)}", now)


def forged(name: str, expires: str, scope: str, secret: str) -> str:
    """A token with these parts, well signed: what a holder of the key could make."""
    encoded = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    payload = f"{encoded}.{expires}.{scope}"
    signature = hmac.digest(secret.encode(), payload.encode(), hashlib.sha256)
    return f"{payload}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


# Keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "form"),
    [
        ("Authorization", "Bearer {}"),
        ("Authorization", "bearer {}"),
        ("Authorization", "BEARER {}"),
        ("Authorization", "Bearer   {}  "),
        ("Authorization", "Api-Key {}"),
        ("Authorization", "Token {}"),
        ("authorization", "token {}"),
        ("X-API-Key", "{}"),
        ("x-api-key", "{}"),
        ("xi-api-key", "{}"),
        ("XI-API-KEY", "{}"),
    ],
)
def test_every_form_of_a_key(header: str, form: str) -> None:
    """A key is taken from each header that clients use, whatever its case; a wrong one is not."""
    assert by_header(header, form.format("s3cret-of-web")) == "web"
    assert by_header(header, form.format("s3cret-of-mobile")) == "mobile"
    assert by_header(header, form.format("wrong")) is None


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Authorization", "s3cret-of-web"),
        ("Authorization", "Basic s3cret-of-web"),
        ("Authorization", "Bearers3cret-of-web"),
        ("Authorization", "Bearer"),
        ("Authorization", "Bearer "),
        ("Authorization", ""),
        ("Authorization", "Bearer web"),
        ("Authorization", "Bearer s3cret-of-we"),
        ("Authorization", "Bearer s3cret-of-webb"),
        ("Authorization", "Bearer S3CRET-OF-WEB"),
        ("Authorization", "Bearer s3cret-of-web s3cret-of-web"),
        ("X-API-Key", ""),
        ("X-API-Key", "Bearer s3cret-of-web"),
        ("X-Other-Key", "s3cret-of-web"),
        ("Cookie", "s3cret-of-web"),
    ],
)
def test_what_is_no_key(header: str, value: str) -> None:
    """Another scheme, another header, a part of a key or a key's name lets nobody in."""
    assert by_header(header, value) is None


def test_no_key_at_all() -> None:
    """A request without any credentials is refused once keys are configured."""
    assert identify(KEYS, Headers(), PATH, NOW) is None


def test_any_of_several_headers() -> None:
    """One right key among wrong ones is enough, in repeated headers and in different ones."""
    repeated = Headers(
        [("Authorization", "Bearer wrong"), ("Authorization", "Bearer s3cret-of-web")]
    )
    assert identify(KEYS, repeated, PATH, NOW) == "web"
    mixed = Headers([("Authorization", "Basic eA=="), ("xi-api-key", "s3cret-of-web")])
    assert identify(KEYS, mixed, PATH, NOW) == "web"
    assert identify(KEYS, Headers({"X-API-Key": "wrong"}), f"{PATH}?token={TOKEN}", NOW) == "mobile"


def test_a_key_is_no_token() -> None:
    """A key in the address, where it would be logged, is not taken."""
    assert by_token("s3cret-of-web") is None


@given(secret=st.text(string.ascii_letters + string.digits + "-._~+/=", min_size=1))
@settings(deadline=None)
def test_any_other_key_is_wrong(secret: str) -> None:
    """No text but a key itself is taken for it."""
    assert (by_header("X-API-Key", secret) is None) == (secret not in KEYS.keys.values())


def test_without_keys_everybody_is_anonymous() -> None:
    """With no key configured nothing is asked for, and nothing presented matters."""
    for headers in (Headers(), Headers({"Authorization": "Bearer x"})):
        assert identify(AuthConfig(), headers, PATH, NOW) == ANONYMOUS


def test_an_empty_secret_lets_nobody_in() -> None:
    """A key whose secret is empty, as an unset variable makes it, lets nobody in.

    Either it is refused at start or it matches nothing, neither as a key nor under a token.
    """
    try:
        auth = load(environment={"ORPHEUS_WS_AUTH__KEYS__WEB": ""}).auth
        check_exposure(auth, "0.0.0.0")
    except StartupError:
        return
    assert by_header("Authorization", "Bearer", auth) is None
    assert by_header("X-API-Key", "", auth) is None
    assert by_token(make_token("web", "", expires=int(NOW) + 60), auth) is None


# Tokens -------------------------------------------------------------------------------------------


def test_a_token_lets_in_under_its_name() -> None:
    """A fresh token identifies as the key it was made with."""
    assert by_token(TOKEN) == "mobile"


@pytest.mark.parametrize(
    ("now", "valid"), [(-1e9, True), (59.9, True), (60, True), (60.001, False)]
)
def test_a_token_expires(now: float, *, valid: bool) -> None:
    """A token is good up to its expiry and not a moment longer."""
    assert by_token(TOKEN, now=NOW + now) == ("mobile" if valid else None)


@pytest.mark.parametrize("position", range(len(TOKEN)))
def test_a_changed_token_is_refused(position: int) -> None:
    """Any other character in any position, or one missing or added, breaks the token."""
    for character in ("A", "B", "0", "1", "-", ".", "~", "é", ""):
        changed = TOKEN[:position] + character + TOKEN[position + 1 :]
        if changed != TOKEN:
            assert by_token(changed) is None
    assert by_token(TOKEN[:position] + "x" + TOKEN[position:]) is None
    assert by_token(TOKEN[:position]) is None


@pytest.mark.parametrize("added", ["A", "=", ".", "%00", " "])
def test_a_prolonged_token_is_refused(added: str) -> None:
    """Nothing may follow the signature."""
    assert by_token(TOKEN + added) is None


def test_a_token_needs_the_key_it_names() -> None:
    """A token signed with one key is no token of another, and dies with its key."""
    assert by_token(make_token("web", "s3cret-of-mobile", expires=int(NOW) + 60)) is None
    changed = AuthConfig(keys={"mobile": "new", "web": "s3cret-of-mobile"})
    assert by_token(TOKEN, changed) is None
    assert by_token(TOKEN, AuthConfig(keys={"web": "s3cret-of-web"})) is None


@pytest.mark.parametrize("name", ["", "nobody", "Mobile", "mobile ", "mobile.web"])
@pytest.mark.parametrize("secret", ["", "s3cret-of-mobile"])
def test_an_unknown_name_is_refused(name: str, secret: str) -> None:
    """A token for a name that has no key is refused, signed with whatever."""
    assert by_token(make_token(name, secret, expires=int(NOW) + 60)) is None


@pytest.mark.parametrize("scope", ["", "TTS", "tts2", "admin", "*"])
def test_another_scope_is_refused(scope: str) -> None:
    """A genuine token for something else does not open speech."""
    token = forged("mobile", f"{int(NOW) + 60}", scope, "s3cret-of-mobile")
    assert by_token(token) is None


@pytest.mark.parametrize(
    "expires", ["", "-1", "1e99", "inf", "9999999999.9", "٩٩٩٩٩٩٩٩٩٩", "²", "9" * 5000]
)
def test_a_strange_expiry_is_refused(expires: str) -> None:
    """An expiry that is no plain number is refused even when it is genuinely signed."""
    assert by_token(forged("mobile", expires, "tts", "s3cret-of-mobile")) is None


def test_the_forger_can_forge() -> None:
    """The helper of the tests around makes good tokens when all of their parts are good."""
    expires = int(NOW) + 60
    assert forged("mobile", str(expires), "tts", "s3cret-of-mobile") == TOKEN
    assert by_token(forged("mobile", str(expires), "tts", "s3cret-of-mobile")) == "mobile"


@given(name=st.text(min_size=1, max_size=20), secret=st.text(min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_names_and_secrets_may_be_any_text(name: str, secret: str) -> None:
    """Names and secrets may have dots, signs and letters of any script; tokens survive an address."""
    token = make_token(name, secret, expires=int(NOW))
    assert by_token(token, AuthConfig(keys={name: secret})) == name
    assert token == quote(token, safe="")
    assert by_token(token, AuthConfig(keys={name: secret + "x"})) is None


@given(query=st.text(string.printable, max_size=80))
@settings(max_examples=200, deadline=None)
def test_no_address_is_too_strange(query: str) -> None:
    """Whatever else is in the address, a request without a valid token is refused, not an error."""
    for address in (f"{PATH}?{query}", f"{PATH}?token={query}", f"{PATH}?token=bW9iaWxl.9.{query}"):
        assert identify(KEYS, Headers(), address, NOW) is None


@pytest.mark.parametrize(
    "query",
    ["a=b&token={}", "token={}&a=b", "token=wrong&token={}", "token=&token={}", "a&token={}"],
)
def test_a_token_among_other_fields(query: str) -> None:
    """The token is found wherever it is in the address."""
    assert identify(KEYS, Headers(), f"{PATH}?{query.format(TOKEN)}", NOW) == "mobile"


@pytest.mark.parametrize("address", [f"{PATH}?Token={TOKEN}", f"{PATH}?tok={TOKEN}", f"/{TOKEN}"])
def test_a_token_elsewhere_is_none(address: str) -> None:
    """Only the field `token` is read."""
    assert identify(KEYS, Headers(), address, NOW) is None


def test_a_token_does_not_show_its_secret() -> None:
    """The secret is not in the token in any form that could be read off."""
    secret = "s3cret-of-mobile"
    encoded = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    assert secret not in TOKEN
    assert encoded not in TOKEN


# The loopback rule --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    """On a loopback address no key is needed."""
    check_exposure(AuthConfig(), host)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "",
        "10.0.0.1",
        "192.168.1.1",
        "fe80::1",
        "example.com",
        "localhost.evil.com",
    ],
)
def test_a_network_needs_a_key(host: str) -> None:
    """Anywhere else a server without keys does not start, unless that is said to be meant."""
    with pytest.raises(StartupError) as caught:
        check_exposure(AuthConfig(), host)
    assert "auth.keys" in str(caught.value)
    assert "auth.anonymous" in str(caught.value)
    check_exposure(AuthConfig(anonymous=True), host)
    check_exposure(KEYS, host)


def test_anonymous_does_not_open_what_has_keys() -> None:
    """Keys are asked for when there are any, also if `anonymous` is set."""
    auth = AuthConfig(keys={"web": "s3cret"}, anonymous=True)
    assert identify(auth, Headers(), PATH, NOW) is None
    assert by_header("X-API-Key", "s3cret", auth) == "web"


@pytest.mark.parametrize(
    ("sent", "allowed"),
    [
        ([], True),
        (["http://app"], True),
        (["http://evil"], False),
        (["http://app", "http://evil"], False),
        (["http://evil", "http://app"], False),
        (["http://app", "http://app"], True),
    ],
)
@pytest.mark.parametrize(
    "access", [AuthConfig(origins=("http://app",)), AuthConfig(anonymous=True)]
)
def test_origins(access: AuthConfig, sent: list[str], allowed: bool) -> None:
    """Every one of them must be listed, or be the host's own if there is no list and no key."""
    headers = Headers([("Host", "app"), *(("Origin", origin) for origin in sent)])
    assert allows_origin(access, headers) is allowed


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8765", True),
        ("127.0.0.1:8765", True),
        ("127.9.9.9", True),
        ("[::1]:8765", True),
        ("[::1]", True),
        ("evil.example:8765", False),
        ("localhost.evil.example:8765", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1:8765", False),
        ("", False),
        (":8765", False),
    ],
)
def test_a_name_of_a_strangers(host: str, allowed: bool) -> None:
    """A page whose own name leads to this machine, by DNS that its owner changes, is a stranger's.

    Its browser says the same name as origin and as host. Only with keys, or where anybody may come
    in, does that not matter.
    """
    headers = Headers([("Host", host), ("Origin", f"http://{host}")])
    assert allows_origin(AuthConfig(), headers) is allowed
    assert allows_origin(AuthConfig(anonymous=True), headers)
    assert allows_origin(KEYS, headers)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "https://app.example.evil", "https://app.example:444", "http://app.example",
     "https://APP.example", "https://app.example/", "https://app.example, https://app.example", "*"],
)  # fmt: skip
def test_what_is_not_listed(origin: str) -> None:
    """An origin is compared letter by letter, as browsers write it; nothing else is on the list."""
    access = AuthConfig(origins=("https://app.example",), keys=KEYS.keys)
    assert not allows_origin(access, Headers([("Origin", origin)]))
    assert allows_origin(access, Headers([("Origin", "https://app.example")]))
    assert allows_origin(access, Headers())


def test_two_hosts() -> None:
    """Who names two hosts is no page of either."""
    headers = Headers([("Host", "app"), ("Host", "evil"), ("Origin", "http://evil")])
    assert not allows_origin(AuthConfig(), headers)


def test_many_at_once_are_guesses() -> None:
    """A right key or token behind as many wrong ones as are looked at lets nobody in; before, it does."""
    for wrong in (MOST_PRESENTED - 1, MOST_PRESENTED):
        expected = "web" if wrong < MOST_PRESENTED else None
        headers = [("X-API-Key", "wrong")] * wrong + [("xi-api-key", "s3cret-of-web")]
        assert identify(KEYS, Headers(headers), PATH, NOW) == expected
        query = "&".join(["token=wrong"] * wrong + [f"token={TOKEN}"])
        expected = "mobile" if wrong < MOST_PRESENTED else None
        assert identify(KEYS, Headers(), f"{PATH}?{query}", NOW) == expected


def test_a_query_of_many_fields() -> None:
    """A token is found among as many fields as may be, and not looked for among more."""
    for more, expected in ((0, "mobile"), (1, None)):
        query = "a=b&" * (MOST_FIELDS - 1 + more) + f"token={TOKEN}"
        assert identify(KEYS, Headers(), f"{PATH}?{query}", NOW) == expected
