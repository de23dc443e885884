"""Certificates and tokens, also over both APIs."""

import http.client
import ssl

import grpc
import pytest
from support.certificates import make_certificates
from support.serving import Client, save_model, serving

from monolith import errors
from monolith.serving.server import security
from monolith.serving.server.config import Security
from monolith.serving.server.security import Tokens


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    save_model(path / "1")
    return path


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("Bearer one", True),
        ("bearer two ", True),
        ("Bearer three", False),
        ("Bearer ", False),
        ("Bearer", False),
        ("one", False),
        ("", False),
        (None, False),
        ("Basic one", False),
        ("Bearer \u00e4\udc80", False),
    ],
)
def test_tokens(header, allowed):
    assert Tokens([b"one", b"two"]).is_allowed(header) is allowed


def test_without_tokens_everybody_is_allowed():
    assert Tokens([]).is_allowed(None)
    assert not Tokens([]).is_required
    assert security.read_tokens(Security()).is_allowed("anything")


def test_bad_files(tmp_path):
    (tmp_path / "empty").write_text(" \n\n")
    (tmp_path / "text").write_text("no certificate")
    text, nothing = str(tmp_path / "text"), str(tmp_path / "nothing")
    with pytest.raises(errors.ConfigError, match="empty; write a token"):
        security.read_tokens(Security(token_file=str(tmp_path / "empty")))
    with pytest.raises(errors.ConfigError, match=r"token file .* cannot be read"):
        security.read_tokens(Security(token_file=nothing))
    for path in (text, nothing):
        config = Security(certificate=path, key=path)
        with pytest.raises(errors.ConfigError, match="cannot be used"):
            security.make_ssl_context(config)
        with pytest.raises(errors.ConfigError, match="cannot be used"):
            security.make_grpc_credentials(config)


def test_a_bad_authority(certificates, tmp_path):
    (tmp_path / "text").write_text("no certificate")
    config = Security(
        certificate=certificates.server,
        key=certificates.server_key,
        client_authority=str(tmp_path / "text"),
    )
    with pytest.raises(errors.ConfigError, match=r"client authority .* cannot be used"):
        security.make_grpc_credentials(config)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def get(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
    try:
        connection.request("GET", "/v1/models/m")
        return connection.getresponse().status
    finally:
        connection.close()


def test_tls(certificates, models):
    config = Security(certificate=certificates.server, key=certificates.server_key)
    with serving(models, security=config) as (server, plain):
        trusting = grpc.ssl_channel_credentials(read(certificates.authority))
        client = Client(server.port, trusting)
        assert client.predict([1.0]) == [2]
        client.close()
        with pytest.raises(grpc.RpcError):
            plain.predict([1.0])
        context = ssl.create_default_context(cafile=certificates.authority)
        assert get(server.rest_port, context) == 200
        connection = http.client.HTTPConnection("localhost", server.rest_port, timeout=30)
        connection.request("GET", "/v1/models/m")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            connection.getresponse()
        connection.close()
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(server.rest_port, context)


def test_mutual_tls(certificates, models):
    config = Security(
        certificate=certificates.server,
        key=certificates.server_key,
        client_authority=certificates.authority,
    )
    root = read(certificates.authority)
    with serving(models, security=config) as (server, _):
        known = grpc.ssl_channel_credentials(
            root, read(certificates.client_key), read(certificates.client)
        )
        client = Client(server.port, known)
        assert client.predict([1.0]) == [2]
        client.close()
        for credentials in (
            grpc.ssl_channel_credentials(root),
            grpc.ssl_channel_credentials(
                root, read(certificates.stranger_key), read(certificates.stranger)
            ),
        ):
            stranger = Client(server.port, credentials)
            with pytest.raises(grpc.RpcError):
                stranger.predict([1.0])
            stranger.close()
        context = ssl.create_default_context(cafile=certificates.authority)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            get(server.rest_port, context)
        context.load_cert_chain(certificates.client, certificates.client_key)
        assert get(server.rest_port, context) == 200
